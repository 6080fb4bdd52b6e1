//! The picture of the README: CPU per request, as bars. Its colours suit light and dark pages.

use std::fmt::Write as _;

use super::findings::Findings;
use super::goals::Figure;
use super::measure::QUIET;
use super::peer::{LIMITED, PLAIN, Peer};
use super::scenario::Scenario;
use crate::numbers::Spread;

const WIDTH: f64 = 860.0;
/// Where bars begin, and where the longest ends.
const LEFT: f64 = 210.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 74.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
/// Room above each group for its name.
const HEAD: f64 = 34.0;

const STYLE: &str = "\
text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.group { font-weight: 600 }
.faint { fill: #59636e; font-size: 12px }
.page { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.ours { fill: #0a8f7f } .theirs { fill: #8c959f }
.redis { fill-opacity: 0.42 }
.range { stroke: #1f2328; stroke-width: 1.5; stroke-opacity: 0.65 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9198a1 }
  .page { fill: #0d1117; stroke: #3d444d } .grid { stroke: #3d444d }
  .ours { fill: #2bb8a5 } .theirs { fill: #768390 }
  .range { stroke: #e6edf3 }
}";

/// Bars below one name.
struct Group {
    name: &'static str,
    bars: Vec<Bar>,
}

/// What a row took, us.
struct Bar {
    peer: Peer,
    proxy_us: f64,
    redis_us: f64,
    /// Of both together.
    all: Spread,
}

/// Draws it; nothing if there is nothing to draw.
pub fn draw(findings: &Findings) -> Option<String> {
    let groups: Vec<Group> = [
        ("No limit", Scenario::Many, &PLAIN[..]),
        (
            "Every client limited, all let through",
            Scenario::Many,
            &LIMITED[..],
        ),
        (
            "Every client limited, rejected with 429",
            Scenario::RejectedVaried,
            &LIMITED[..],
        ),
    ]
    .into_iter()
    .map(|(name, scenario, peers)| Group {
        name,
        bars: peers
            .iter()
            .filter_map(|peer| bar(findings, scenario, *peer))
            .collect(),
    })
    .filter(|group| !group.bars.is_empty())
    .collect();
    let all = groups.iter().flat_map(|group| &group.bars);
    let most = all.map(|bar| bar.all.max).fold(0.0, f64::max);
    (most > 0.0).then(|| picture(findings, &groups, most))
}

fn bar(findings: &Findings, scenario: Scenario, peer: Peer) -> Option<Bar> {
    let of = |figure: Figure| findings.spread(scenario, peer, move |sample| figure.of(sample));
    Some(Bar {
        peer,
        proxy_us: of(Figure::Proxy)?.median,
        redis_us: match peer.needs_redis() {
            true => of(Figure::Redis)?.median,
            false => 0.0,
        },
        all: of(match peer.needs_redis() {
            true => Figure::Both,
            false => Figure::Proxy,
        })?,
    })
}

fn picture(findings: &Findings, groups: &[Group], most: f64) -> String {
    let tick = tick(most);
    let ticks = (most / tick).ceil();
    let scale = (RIGHT - LEFT) / (ticks * tick);
    let height_of = |group: &Group| HEAD + STEP * group.bars.len() as f64;
    let bottom = TOP + groups.iter().map(height_of).sum::<f64>();
    let height = bottom + 58.0;
    // A page of its own: which theme the reader chose is not always known to a picture.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"title\">\n<title id=\"title\">CPU time per request of tidegate, nginx \
         and HAProxy</title>\n<style>\n{STYLE}\n</style>\n<rect class=\"page\" x=\"0.5\" y=\"0.5\" \
         width=\"{}\" height=\"{}\" rx=\"6\"/>\n",
        WIDTH - 1.0,
        height - 1.0
    );
    text(
        &mut svg,
        (24.0, 30.0),
        "title",
        "CPU time per request, \u{b5}s (less is better)",
    );
    let rounds = match findings.rounds {
        1 => "one round".to_owned(),
        rounds => format!("median of {rounds} rounds, line: least to most"),
    };
    let sub = format!(
        "64 connections, small answers, one core for the proxy; {rounds}; pale: CPU time of Redis"
    );
    text(&mut svg, (24.0, 52.0), "faint", &sub);
    let mut y = TOP;
    for group in groups {
        let lines = (y + HEAD - 5.0, y + height_of(group) - 3.0);
        for line in 0..=(ticks as u32) {
            grid(&mut svg, LEFT + f64::from(line) * tick * scale, lines);
        }
        text(&mut svg, (24.0, y + 24.0), "group", group.name);
        for (place, bar) in group.bars.iter().enumerate() {
            draw_bar(&mut svg, bar, y + HEAD + STEP * place as f64, scale);
        }
        y += height_of(group);
    }
    for line in 0..=(ticks as u32) {
        let us = f64::from(line) * tick;
        middle(
            &mut svg,
            (LEFT + us * scale, bottom + 16.0),
            &us.to_string(),
        );
    }
    text(&mut svg, (24.0, bottom + 42.0), "faint", &about(findings));
    svg + "</svg>\n"
}

fn grid(svg: &mut String, x: f64, (from, to): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\"/>"
    );
}

/// What ran; and that others did, if so.
fn about(findings: &Findings) -> String {
    let names = ["tidegate", "nginx", "HAProxy", "Redis"];
    let versions = findings.versions.iter();
    let versions = versions.filter(|(name, _)| names.contains(name));
    let versions = versions.map(|(name, version)| format!("{name} {version}"));
    let mut said = versions.collect::<Vec<_>>().join(", ");
    if findings.foreign() > QUIET {
        let percent = findings.foreign() * 100.0;
        let _ = write!(
            said,
            "; others used up to {percent:.0} % of a core meanwhile"
        );
    }
    said
}

/// A step of the scale: 1, 2 or 5 times a power of ten, and at most ten of them.
fn tick(most: f64) -> f64 {
    let power = 10_f64.powf((most / 10.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let enough = steps.into_iter().find(|step| most / step <= 10.0);
    enough.unwrap_or(most)
}

fn draw_bar(svg: &mut String, bar: &Bar, y: f64, scale: f64) {
    let class = if bar.peer.is_ours() { "ours" } else { "theirs" };
    let label = y + BAR - 4.5;
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{label:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 10.0,
        bar.peer.name()
    );
    let (proxy, redis) = (bar.proxy_us * scale, bar.redis_us * scale);
    rectangle(svg, class, (LEFT, y), proxy);
    if redis > 0.0 {
        rectangle(svg, &format!("{class} redis"), (LEFT + proxy, y), redis);
    }
    let (least, most) = (LEFT + bar.all.min * scale, LEFT + bar.all.max * scale);
    if most - least > 0.5 {
        let middle = y + BAR / 2.0;
        let _ = writeln!(
            svg,
            "<line class=\"range\" x1=\"{least:.1}\" x2=\"{most:.1}\" y1=\"{middle:.1}\" \
             y2=\"{middle:.1}\"/>"
        );
    }
    let said = match bar.peer.needs_redis() {
        true => format!("{:.1} + {:.1}", bar.proxy_us, bar.redis_us),
        false => format!("{:.1}", bar.proxy_us),
    };
    let end = most.max(LEFT + proxy + redis);
    text(svg, (end + 8.0, label), class_of_value(bar), &said);
}

fn class_of_value(bar: &Bar) -> &'static str {
    if bar.peer.is_ours() { "group" } else { "value" }
}

fn rectangle(svg: &mut String, class: &str, (x, y): (f64, f64), width: f64) {
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, said: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{said}</text>"
    );
}

fn middle(svg: &mut String, (x, y): (f64, f64), said: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"faint\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{said}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::super::measure::Sample;
    use super::*;

    fn sample(proxy_us: f64, redis_us: f64) -> Option<Sample> {
        Some(Sample {
            requests: 1,
            per_second: 1.0,
            proxy_us,
            redis_us,
            upstream_us: 0.0,
            busy: 1.0,
            foreign: 0.0,
            waits_us: None,
        })
    }

    #[test]
    fn a_scale_has_at_most_ten_steps() {
        assert_eq!(tick(9.0), 1.0);
        assert_eq!(tick(41.0), 5.0);
        assert_eq!(tick(17.0), 2.0);
        assert_eq!(tick(0.4), 0.05);
    }

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let mut findings = Findings {
            rounds: 1,
            ..Findings::default()
        };
        assert_eq!(draw(&findings), None);
        let many = Scenario::Many;
        findings
            .samples
            .insert((many, Peer::Nginx), vec![sample(10.0, 0.0)]);
        findings
            .samples
            .insert((many, Peer::NginxLua), vec![sample(5.0, 5.0)]);
        let svg = draw(&findings).unwrap();
        let bars: Vec<&str> = svg
            .lines()
            .filter(|line| line.starts_with("<rect class=\"theirs"))
            .collect();
        let width = RIGHT - LEFT;
        assert_eq!(bars.len(), 3, "{bars:?}");
        assert!(
            bars[0].contains(&format!("width=\"{width:.1}\"")),
            "{bars:?}"
        );
        for bar in &bars[1..] {
            assert!(
                bar.contains(&format!("width=\"{:.1}\"", width / 2.0)),
                "{bars:?}"
            );
        }
        assert!(svg.contains(">5.0 + 5.0</text>"));
        assert!(!svg.contains("HAProxy stick-table"));
    }
}
