//! Tables, and the places in the documentation that they are written to: each between two comments.

/// A table in Markdown that reads well as it is, too: words in the first column, then figures.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([head[column].chars().count(), 3])
            .max()
            .unwrap()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).enumerate();
        let padded = padded.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths
        .iter()
        .enumerate()
        .map(|(column, width)| match column {
            0 => "-".repeat(width + 2),
            _ => "-".repeat(width + 1) + ":",
        });
    let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
    let rows = rows.iter().map(|row| {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        line(&cells)
    });
    line(head) + &rule + &rows.collect::<String>()
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
            vec!["nginx".to_owned(), "10.8".to_owned()],
            vec!["a longer name".to_owned(), "1".to_owned()],
        ];
        let expected = "\
            | proxy         |   us |\n\
            |---------------|-----:|\n\
            | nginx         | 10.8 |\n\
            | a longer name |    1 |\n";
        assert_eq!(table(&["proxy", "us"], &rows), expected);
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
