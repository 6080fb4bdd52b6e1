//! Metrics as Prometheus reads them: OpenMetrics 1.0, or its older text format 0.0.4.
//!
//! They differ in what a counter's family is called and in how the text ends; both are written
//! from the same calls.

use std::fmt::{self, Display, Write};

use super::cells::Durations;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
    /// `text/plain; version=0.0.4`
    Plain,
}

impl Form {
    /// What a client that sends this `Accept` gets: OpenMetrics if it names it.
    pub fn asked(accept: Option<&str>) -> Form {
        let names = |part: &str| {
            part.trim_start()
                .starts_with("application/openmetrics-text")
        };
        match accept.is_some_and(|accept| accept.split(',').any(names)) {
            true => Form::OpenMetrics,
            false => Form::Plain,
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Form::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows; its samples end in `_total`.
    Counter,
    /// What is so now.
    Gauge,
    /// Words about the process; its sample ends in `_info`.
    Info,
    /// Durations in classes, seconds.
    Histogram,
}

/// A text on its way.
#[derive(Debug)]
pub struct Text {
    form: Form,
    out: String,
    /// The family that is written now, without its ending.
    family: &'static str,
    kind: Kind,
}

/// Labels of a sample: names, which are ours, and values, which need not be.
pub type Labels<'l> = &'l [(&'static str, &'l str)];

impl Text {
    /// Nothing yet.
    pub fn new(form: Form) -> Text {
        Text {
            form,
            out: String::with_capacity(16 << 10),
            family: "",
            kind: Kind::Gauge,
        }
    }

    /// Begins a family: all its samples follow before the next one begins.
    pub fn family(&mut self, kind: Kind, name: &'static str, help: &str) {
        (self.family, self.kind) = (name, kind);
        let word = match (kind, self.form) {
            (Kind::Counter, _) => "counter",
            (Kind::Info, Form::OpenMetrics) => "info",
            (Kind::Gauge | Kind::Info, _) => "gauge",
            (Kind::Histogram, _) => "histogram",
        };
        let ending = match (kind, self.form) {
            (Kind::Counter | Kind::Info, Form::Plain) => self.ending(),
            _ => "",
        };
        self.add(format_args!("# HELP {name}{ending} {help}\n"));
        self.add(format_args!("# TYPE {name}{ending} {word}\n"));
    }

    /// One sample of the family.
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        let ending = self.ending();
        self.line(ending, labels, None, value);
    }

    /// One histogram, by the bounds of its classes, microseconds.
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

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.form == Form::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn ending(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
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

/// Microseconds as seconds, exactly, with a point: OpenMetrics wants one in a bound.
pub fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    let short = text.trim_end_matches('0');
    match short.ends_with('.') {
        true => format!("{short}0"),
        false => short.to_owned(),
    }
}

/// A label's value between its quotes.
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

    fn written(form: Form) -> String {
        let mut text = Text::new(form);
        text.family(Kind::Counter, "a", "How many.");
        text.sample(&[("route", "GET \"/\"\\\n")], 3);
        text.family(Kind::Gauge, "b", "How much.");
        text.sample(&[], 0.5);
        text.family(Kind::Info, "c", "What.");
        text.sample(&[("version", "1")], 1);
        text.finish()
    }

    #[test]
    fn both_forms_have_the_same_samples() {
        let samples = "a_total{route=\"GET \\\"/\\\"\\\\\\n\"} 3";
        let open = written(Form::OpenMetrics);
        assert!(open.starts_with(&format!(
            "# HELP a How many.\n# TYPE a counter\n{samples}\n"
        )));
        assert!(open.ends_with("# TYPE c info\nc_info{version=\"1\"} 1\n# EOF\n"));
        let plain = written(Form::Plain);
        assert!(plain.starts_with("# HELP a_total How many.\n# TYPE a_total counter\n"));
        assert!(plain.ends_with("# TYPE c_info gauge\nc_info{version=\"1\"} 1\n"));
        assert!(open.contains("\nb 0.5\n") && plain.contains("\nb 0.5\n"));
    }

    #[test]
    fn histograms_add_up_to_their_count() {
        let mut text = Text::new(Form::OpenMetrics);
        text.family(Kind::Histogram, "d_seconds", "How long.");
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
    fn who_asks_for_openmetrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5";
        assert_eq!(Form::asked(Some(prometheus)), Form::OpenMetrics);
        assert_eq!(Form::asked(Some("text/plain, */*")), Form::Plain);
        assert_eq!(Form::asked(None), Form::Plain);
    }
}
