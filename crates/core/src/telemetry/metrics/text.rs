//! Metrics in one of the two text formats of Prometheus: OpenMetrics 1.0, or the older format
//! 0.0.4.
//!
//! They differ in the names of counter families and in the end of the text.

use std::fmt::{self, Display, Write};

use super::cells::Durations;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
    /// `text/plain; version=0.0.4`
    Plain,
}

impl TextFormat {
    /// The format for this `Accept`: OpenMetrics if it is named.
    pub fn negotiate(accept: Option<&str>) -> TextFormat {
        let names = |part: &str| {
            part.trim_start()
                .starts_with("application/openmetrics-text")
        };
        match accept.is_some_and(|accept| accept.split(',').any(names)) {
            true => TextFormat::OpenMetrics,
            false => TextFormat::Plain,
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            TextFormat::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows. The names of its samples end in `_total`.
    Counter,
    Gauge,
    /// Labels that describe the process. The name of its sample ends in `_info`.
    Info,
    /// Durations in classes, seconds.
    Histogram,
}

impl MetricType {
    fn ending(self) -> &'static str {
        match self {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            MetricType::Gauge | MetricType::Histogram => "",
        }
    }
}

#[derive(Debug)]
pub struct MetricsText {
    format: TextFormat,
    out: String,
    family: &'static str,
    kind: MetricType,
}

pub type Labels<'l> = &'l [(&'static str, &'l str)];

impl MetricsText {
    pub fn new(format: TextFormat) -> MetricsText {
        MetricsText {
            format,
            out: String::with_capacity(16 << 10),
            family: "",
            kind: MetricType::Gauge,
        }
    }

    /// Begins a family. All its samples must follow before the next one begins.
    pub fn family(&mut self, kind: MetricType, name: &'static str, help: &str) {
        (self.family, self.kind) = (name, kind);
        let is_plain = self.format == TextFormat::Plain;
        let word = match kind {
            MetricType::Counter => "counter",
            MetricType::Info if !is_plain => "info",
            MetricType::Gauge | MetricType::Info => "gauge",
            MetricType::Histogram => "histogram",
        };
        let ending = if is_plain { kind.ending() } else { "" };
        self.add(format_args!("# HELP {name}{ending} {help}\n"));
        self.add(format_args!("# TYPE {name}{ending} {word}\n"));
    }

    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(MetricType::Gauge, name, help);
        self.sample(&[], value);
    }

    pub fn counter(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(MetricType::Counter, name, help);
        self.sample(&[], value);
    }

    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line(self.kind.ending(), labels, None, value);
    }

    /// One histogram. `bounds` are the upper bounds of its classes, microseconds.
    pub fn durations(&mut self, labels: Labels<'_>, bounds: &[u64], sum: &Durations) {
        let mut below = 0;
        for (class, count) in sum.classes.iter().enumerate() {
            below += count;
            let bound = match bounds.get(class) {
                Some(bound) => seconds(*bound),
                None => "+Inf".to_owned(),
            };
            self.line("_bucket", labels, Some(&bound), below);
        }
        self.line("_sum", labels, None, seconds(sum.sum_us));
        self.line("_count", labels, None, below);
    }

    pub fn finish(mut self) -> String {
        if self.format == TextFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn line(&mut self, ending: &str, labels: Labels<'_>, le: Option<&str>, value: impl Display) {
        let family = self.family;
        self.add(format_args!("{family}{ending}"));
        let le = le.map(|bound| ("le", bound));
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(le) {
            self.add(format_args!("{before}{name}=\"{}\"", Escaped(value)));
            before = ',';
        }
        if before == ',' {
            self.out.push('}');
        }
        self.add(format_args!(" {value}\n"));
    }

    fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing into a String cannot fail.
        let _ = self.out.write_fmt(text);
    }
}

/// Microseconds as seconds, exactly. OpenMetrics wants a point in a bound.
pub fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    let short = text.trim_end_matches('0');
    match short.ends_with('.') {
        true => format!("{short}0"),
        false => short.to_owned(),
    }
}

struct Escaped<'e>(&'e str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: TextFormat) -> String {
        let mut text = MetricsText::new(format);
        text.family(MetricType::Counter, "a", "How many.");
        text.sample(&[("route", "GET \"/\"\\\n")], 3);
        text.family(MetricType::Gauge, "b", "How much.");
        text.sample(&[], 0.5);
        text.family(MetricType::Info, "c", "What.");
        text.sample(&[("version", "1")], 1);
        text.finish()
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let samples = "a_total{route=\"GET \\\"/\\\"\\\\\\n\"} 3";
        let open = written(TextFormat::OpenMetrics);
        assert!(open.starts_with(&format!(
            "# HELP a How many.\n# TYPE a counter\n{samples}\n"
        )));
        assert!(open.ends_with("# TYPE c info\nc_info{version=\"1\"} 1\n# EOF\n"));
        let plain = written(TextFormat::Plain);
        assert!(plain.starts_with("# HELP a_total How many.\n# TYPE a_total counter\n"));
        assert!(plain.ends_with("# TYPE c_info gauge\nc_info{version=\"1\"} 1\n"));
        assert!(open.contains("\nb 0.5\n") && plain.contains("\nb 0.5\n"));
    }

    #[test]
    fn histograms_add_up_to_their_count() {
        let mut text = MetricsText::new(TextFormat::OpenMetrics);
        text.family(MetricType::Histogram, "d_seconds", "How long.");
        let mut sum = Durations::default();
        (sum.classes[0], sum.classes[14], sum.sum_us) = (2, 1, 1_500_000);
        text.durations(&[("route", "r")], &super::super::REQUEST_BOUNDS, &sum);
        let text = text.finish();
        assert!(text.contains("d_seconds_bucket{route=\"r\",le=\"0.0005\"} 2\n"));
        assert!(text.contains("d_seconds_bucket{route=\"r\",le=\"1.0\"} 2\n"));
        assert!(text.contains("d_seconds_bucket{route=\"r\",le=\"+Inf\"} 3\n"));
        assert!(text.contains("d_seconds_sum{route=\"r\"} 1.5\nd_seconds_count{route=\"r\"} 3\n"));
    }

    #[test]
    fn openmetrics_is_written_if_it_is_accepted() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5";
        assert_eq!(
            TextFormat::negotiate(Some(prometheus)),
            TextFormat::OpenMetrics
        );
        assert_eq!(
            TextFormat::negotiate(Some("text/plain, */*")),
            TextFormat::Plain
        );
        assert_eq!(TextFormat::negotiate(None), TextFormat::Plain);
    }
}
