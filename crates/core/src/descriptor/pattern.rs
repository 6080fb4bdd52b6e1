//! A value with `*`: each star stands for any text, also for none.

use std::fmt;

/// A pattern as its literal texts; a star stands between two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePattern {
    /// At least two.
    texts: Vec<String>,
}

impl ValuePattern {
    /// `None` if the text has no star.
    pub fn parse(text: &str) -> Option<ValuePattern> {
        let texts: Vec<String> = text.split('*').map(str::to_owned).collect();
        (texts.len() > 1).then_some(ValuePattern { texts })
    }

    /// The number of characters that are no star.
    pub fn literals(&self) -> usize {
        self.texts.iter().map(|text| text.chars().count()).sum()
    }

    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = self.texts.as_slice() else {
            return false;
        };
        let Some(mut rest) = value.strip_prefix(first.as_str()) else {
            return false;
        };
        for text in middle {
            // The first place leaves most room for the texts that follow.
            let Some((_, after)) = rest.split_once(text.as_str()) else {
                return false;
            };
            rest = after;
        }
        rest.ends_with(last.as_str())
    }

    /// Whether some value matches both patterns. It takes time in proportion to the product of
    /// their lengths.
    pub fn meets(&self, other: &ValuePattern) -> bool {
        let (ours, others) = (self.tokens(), other.tokens());
        let (rows, columns) = (ours.len(), others.len());
        // Whether the rest of ours from `row` and the rest of the other's from `column` meet.
        let mut rests = vec![vec![false; columns + 1]; rows + 1];
        for row in (0..=rows).rev() {
            for column in (0..=columns).rev() {
                rests[row][column] = match (ours.get(row), others.get(column)) {
                    (None, None) => true,
                    // A star takes nothing, or one token of the other pattern.
                    (Some(None), None) => rests[row + 1][column],
                    (None, Some(None)) => rests[row][column + 1],
                    (Some(None), Some(_)) | (Some(_), Some(None)) => {
                        rests[row + 1][column] || rests[row][column + 1]
                    }
                    (Some(one), Some(two)) => one == two && rests[row + 1][column + 1],
                    (None, Some(_)) | (Some(_), None) => false,
                };
            }
        }
        rests[0][0]
    }

    /// Each character, and `None` for each star.
    fn tokens(&self) -> Vec<Option<char>> {
        let mut tokens = Vec::new();
        for (index, text) in self.texts.iter().enumerate() {
            if index > 0 {
                tokens.push(None);
            }
            tokens.extend(text.chars().map(Some));
        }
        tokens
    }
}

impl fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts.join("*"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> ValuePattern {
        ValuePattern::parse(text).unwrap()
    }

    #[test]
    fn a_star_is_any_text() {
        for (text, value, expected) in [
            ("a*", "a", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "a", false),
            ("a*a", "a", false),
            ("*b*", "abc", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
            ("a*bc*c", "abc", false),
        ] {
            assert_eq!(pattern(text).matches(value), expected, "{text} {value}");
        }
        assert_eq!(ValuePattern::parse("plain"), None);
        assert_eq!(pattern("a*é*").literals(), 2);
    }

    /// Whether `value` matches, by trying every length for each star.
    fn model(pattern: &str, value: &str) -> bool {
        match (pattern.chars().next(), value.chars().next()) {
            (None, first) => first.is_none(),
            (Some('*'), first) => {
                model(&pattern[1..], value) || first.is_some() && model(pattern, &value[1..])
            }
            (Some(wanted), Some(first)) => wanted == first && model(&pattern[1..], &value[1..]),
            (Some(_), None) => false,
        }
    }

    /// Every text of at most six characters.
    fn texts() -> Vec<String> {
        let mut all = vec![String::new()];
        let mut at = 0;
        while at < all.len() {
            if all[at].len() < 6 {
                for letter in ["a", "b"] {
                    all.push(format!("{}{letter}", all[at]));
                }
            }
            at += 1;
        }
        all
    }

    proptest! {
        #[test]
        fn matching_is_the_models(text in "[ab]{0,2}\\*[ab*]{0,4}", value in "[ab]{0,6}") {
            prop_assert_eq!(pattern(&text).matches(&value), model(&text, &value));
        }

        #[test]
        fn patterns_meet_if_a_value_matches_both(
            one in "[ab]{0,2}\\*[ab]{0,1}\\*?[ab]{0,1}",
            two in "[ab]{0,2}\\*[ab]{0,1}\\*?[ab]{0,1}",
        ) {
            let both = |text: &String| model(&one, text) && model(&two, text);
            let meets = pattern(&one).meets(&pattern(&two));
            prop_assert_eq!(meets, texts().iter().any(both), "{} {}", one, two);
        }
    }
}
