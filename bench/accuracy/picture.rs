//! The picture: a row for each limiter, a column for each kind of traffic, and in each place how
//! full the last minute was; what is above the limit is red. Its colours suit light and dark pages.

use std::fmt::Write as _;

use super::traffic::{LENGTH_US, SECOND_US, TRAFFIC};
use super::{LIMIT, Limiter, Run};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 170.0;
const TOP: f64 = 96.0;
const PANEL: (f64, f64) = (208.0, 66.0);
const STEP: (f64, f64) = (224.0, 84.0);
/// What the height of a panel stands for, percent of the limit.
const MOST: f64 = 270.0;

const STYLE: &str = "\
text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.group { font-weight: 600 }
.faint { fill: #59636e; font-size: 12px }
.page { fill: #ffffff; stroke: #d1d9e0 }
.panel { fill: #f6f8fa }
.limit { stroke: #59636e; stroke-width: 1; stroke-dasharray: 3 3 }
.ours { fill: #0a8f7f } .theirs { fill: #8c959f }
.over { fill: #cf222e } .much { fill: #cf222e; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9198a1 }
  .page { fill: #0d1117; stroke: #3d444d } .panel { fill: #161b22 }
  .limit { stroke: #9198a1 }
  .ours { fill: #2bb8a5 } .theirs { fill: #768390 }
  .over { fill: #f85149 } .much { fill: #f85149 }
}";

pub fn draw(runs: &[(Limiter, Vec<Run>)]) -> String {
    let height = TOP + STEP.1 * runs.len() as f64 + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"title\">\n<title id=\"title\">How full the last minute was, by limiter \
         and traffic</title>\n<style>\n{STYLE}\n</style>\n<rect class=\"page\" x=\"0.5\" y=\"0.5\" \
         width=\"{}\" height=\"{}\" rx=\"6\"/>\n",
        WIDTH - 1.0,
        height - 1.0
    );
    let title = "Requests let through within the last minute, limit 100/min";
    text(&mut svg, (24.0, 30.0), "title", title);
    let about = "five minutes of one client; dashed: the limit; red: above it; the figure: the \
                 fullest window";
    text(&mut svg, (24.0, 52.0), "faint", about);
    for (column, traffic) in TRAFFIC.iter().enumerate() {
        let x = LEFT + STEP.0 * column as f64;
        text(&mut svg, (x, TOP - 14.0), "group", traffic.name());
    }
    for (row, (limiter, runs)) in runs.iter().enumerate() {
        let y = TOP + STEP.1 * row as f64;
        text(&mut svg, (24.0, y + 28.0), "group", limiter.name());
        text(&mut svg, (24.0, y + 46.0), "faint", limiter.about());
        for (column, run) in runs.iter().enumerate() {
            let x = LEFT + STEP.0 * column as f64;
            panel(&mut svg, (x, y), run, limiter.is_ours());
        }
    }
    let end = height - 22.0;
    text(&mut svg, (LEFT, end), "faint", "0");
    text(&mut svg, (LEFT + PANEL.0 - 34.0, end), "faint", "5 min");
    svg + "</svg>\n"
}

fn panel(svg: &mut String, (x, y): (f64, f64), run: &Run, ours: bool) {
    let (width, height) = PANEL;
    let _ = writeln!(
        svg,
        "<rect class=\"panel\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
    );
    let level = |percent: f64| y + height - percent * height / MOST;
    let seconds = LENGTH_US / SECOND_US;
    let points: Vec<(f64, f64)> = (0..=seconds)
        .map(|second| {
            let percent = run.within(second * SECOND_US) as f64 * 100.0 / LIMIT as f64;
            (x + second as f64 * width / seconds as f64, percent)
        })
        .collect();
    let class = if ours { "ours" } else { "theirs" };
    area(
        svg,
        class,
        &points,
        |percent| level(percent.min(100.0)),
        level(0.0),
    );
    if points.iter().any(|(_, percent)| *percent > 100.0) {
        area(
            svg,
            "over",
            &points,
            |percent| level(percent.max(100.0)),
            level(100.0),
        );
    }
    let line = level(100.0);
    let _ = writeln!(
        svg,
        "<line class=\"limit\" x1=\"{x}\" x2=\"{}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/>",
        x + width
    );
    let fullest = run.fullest() * 100 / LIMIT;
    let class = if fullest > 100 { "much" } else { "faint" };
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{fullest} %</text>",
        x + width - 5.0,
        y + 15.0
    );
}

/// What lies between a line through the points and a level.
fn area(
    svg: &mut String,
    class: &str,
    points: &[(f64, f64)],
    level: impl Fn(f64) -> f64,
    base: f64,
) {
    let (first, last) = (points[0].0, points[points.len() - 1].0);
    let _ = write!(svg, "<path class=\"{class}\" d=\"M{first:.1} {base:.1}");
    for (place, (x, percent)) in points.iter().enumerate() {
        let same = |other: Option<&(f64, f64)>| other.is_some_and(|other| other.1 == *percent);
        // In the middle of a level stretch.
        if place > 0 && same(points.get(place - 1)) && same(points.get(place + 1)) {
            continue;
        }
        let _ = write!(svg, " L{x:.1} {:.1}", level(*percent));
    }
    let _ = writeln!(svg, " L{last:.1} {base:.1} Z\"/>");
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, said: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{said}</text>"
    );
}
