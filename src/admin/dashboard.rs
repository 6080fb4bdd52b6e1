//! The files of the dashboard, which are part of the program. The head of `page.js` describes them;
//! `tests/browser` tests them in a browser.

use http::{Response, StatusCode};

use super::response::{AdminBody, with_type};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The name, media type and text of each file.
const FILES: [(&str, &str, &str); 14] = [
    ("", HTML, include_str!("dashboard/index.html")),
    ("style.css", CSS, include_str!("dashboard/style.css")),
    ("theme.js", JS, include_str!("dashboard/theme.js")),
    ("page.js", JS, include_str!("dashboard/page.js")),
    ("actions.js", JS, include_str!("dashboard/actions.js")),
    ("api.js", JS, include_str!("dashboard/api.js")),
    ("charts.js", JS, include_str!("dashboard/charts.js")),
    ("denials.js", JS, include_str!("dashboard/denials.js")),
    ("dom.js", JS, include_str!("dashboard/dom.js")),
    ("explain.js", JS, include_str!("dashboard/explain.js")),
    ("limits.js", JS, include_str!("dashboard/limits.js")),
    ("routes.js", JS, include_str!("dashboard/routes.js")),
    ("table.js", JS, include_str!("dashboard/table.js")),
    ("theming.js", JS, include_str!("dashboard/theming.js")),
];

/// The file of this name. The name of the page itself is empty.
pub(super) fn file(name: &str) -> Option<Response<AdminBody>> {
    let (_, media, text) = FILES.iter().find(|(known, ..)| *known == name)?;
    Some(with_type(StatusCode::OK, media, *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a text between `open` and `close`.
    fn between<'t>(text: &'t str, open: &str, close: char) -> Vec<&'t str> {
        let parts = text.split(open).skip(1);
        parts.filter_map(|rest| rest.split(close).next()).collect()
    }

    #[test]
    fn what_the_files_ask_for_is_there_and_nothing_is_from_elsewhere() {
        for (name, media, text) in FILES {
            let asked = match media {
                HTML => [
                    between(text, "src=\"", '"'),
                    between(text, "rel=\"stylesheet\" href=\"", '"'),
                ]
                .concat(),
                _ => between(text, " from './", '\''),
            };
            for file in asked {
                assert!(self::file(file).is_some(), "{name} asks for {file}");
            }
            // The name of SVG is an address, but browsers do not request it.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                media == JS || !text.contains("://"),
                "{name} asks elsewhere"
            );
        }
    }

    #[test]
    fn no_file_makes_markup_of_a_text() {
        let ways = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ];
        for (name, _, text) in FILES {
            for way in ways {
                assert!(!text.contains(way), "{name} has {way}");
            }
            assert!(
                !text.contains(" style=") && !text.contains(" onclick="),
                "{name} is inline"
            );
        }
    }

    #[test]
    fn files_and_lines_fit_as_they_do_elsewhere() {
        for (name, media, text) in FILES {
            assert!(text.lines().count() <= 500, "{name} is long");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(media == HTML || widest <= Some(100), "{name} is wide");
        }
    }
}
