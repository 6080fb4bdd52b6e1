//! Tables, and the places in the documentation that they are written to: each between two comments.

use std::process::Command;

/// A table in Markdown that reads well as it is, too. Columns of figures are on the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let columns: Vec<Column> = (0..head.len())
        .map(|place| Column::of(place, head, rows))
        .collect();
    let line = |cells: &[&str]| {
        let cells = cells.iter().zip(&columns);
        let padded: Vec<String> = cells
            .map(|(cell, Column { width, figures })| match figures {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            })
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule: Vec<String> = columns
        .iter()
        .map(|Column { width, figures }| match figures {
            true => "-".repeat(width + 1) + ":",
            false => "-".repeat(width + 2),
        })
        .collect();
    let rule = format!("|{}|\n", rule.join("|"));
    let rows = rows.iter().map(|row| {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        line(&cells)
    });
    line(head) + &rule + &rows.collect::<String>()
}

struct Column {
    width: usize,
    /// Whether figures are in it, or words.
    figures: bool,
}

impl Column {
    fn of(place: usize, head: &[&str], rows: &[Vec<String>]) -> Column {
        let cells = || rows.iter().map(|row| row[place].as_str());
        let widths = cells()
            .chain([head[place]])
            .map(|cell| cell.chars().count());
        let figure = |cell: &str| cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit());
        Column {
            width: widths.max().unwrap_or(0).max(3),
            figures: place > 0 && cells().all(figure),
        }
    }
}

/// Of which day and which commit figures are: `2026-11-22, commit ab16f39`.
pub fn when() -> String {
    let said = |program: &str, words: &[&str]| {
        let said = Command::new(program).args(words).output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        said.ok().filter(|text| !text.is_empty())
    };
    let day = said("date", &["-u", "+%F"]).unwrap_or_default();
    match said("git", &["log", "-1", "--format=%h"]) {
        Some(commit) => format!("{day}, commit {commit}"),
        None => day,
    }
}

/// The page with what stands between the comments of `name` replaced; nothing if it has no such
/// place.
pub fn with(page: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (
        format!("<!-- {name}: begin"),
        format!("<!-- {name}: end -->"),
    );
    let (before, rest) = page.split_once(&begin)?;
    let (by, rest) = rest.split_once('\n')?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{by}\n\n{text}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_table_line_up() {
        let rows = [
            vec!["nginx".to_owned(), "10.8".to_owned(), "fast".to_owned()],
            vec!["a longer name".to_owned(), "1".to_owned(), String::new()],
        ];
        let expected = "\
            | proxy         |   us | what |\n\
            |---------------|-----:|------|\n\
            | nginx         | 10.8 | fast |\n\
            | a longer name |    1 |      |\n";
        assert_eq!(table(&["proxy", "us", "what"], &rows), expected);
    }

    #[test]
    fn a_place_is_filled_again_and_nothing_else() {
        let page = "a\n<!-- x: begin, by hand -->\nold\n<!-- x: end -->\nb\n";
        let filled = with(page, "x", "new\n").unwrap();
        let expected = "a\n<!-- x: begin, by hand -->\n\nnew\n\n<!-- x: end -->\nb\n";
        assert_eq!(filled, expected);
        assert_eq!(with(&filled, "x", "new\n").unwrap(), expected);
        assert_eq!(with(page, "y", "new\n"), None);
    }
}
