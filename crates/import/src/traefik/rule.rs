//! Parses the rules of routers: ``Host(`a`) && (PathPrefix(`/x`) || Path(`/y`))``.

/// Alternatives of one rule, at most.
const MAX_ALTERNATIVES: usize = 64;
/// Parentheses within parentheses, at most.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matcher {
    pub(super) name: String,
    pub(super) args: Vec<String>,
}

pub(super) type Alternative = Vec<Matcher>;

/// Parses a rule as alternatives, one of which must match.
pub(super) fn parse_rule(text: &str) -> Result<Vec<Alternative>, String> {
    let mut parser = RuleParser { rest: text };
    let all = parser.parse_or(0)?;
    match parser.rest.trim_start() {
        "" => Ok(all),
        rest => Err(format!("`{rest}` is left over")),
    }
}

struct RuleParser<'t> {
    rest: &'t str,
}

impl RuleParser<'_> {
    /// Skips blanks and a word, if the word is there.
    fn take(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_start();
        let behind = self.rest.strip_prefix(word);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    fn parse_or(&mut self, depth: usize) -> Result<Vec<Alternative>, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deep".to_owned());
        }
        let mut found = self.parse_and(depth)?;
        while self.take("||") {
            found.extend(self.parse_and(depth)?);
            check_count(&found)?;
        }
        Ok(found)
    }

    /// Parses `a && b` and multiplies it out.
    fn parse_and(&mut self, depth: usize) -> Result<Vec<Alternative>, String> {
        let mut found = self.parse_one(depth)?;
        while self.take("&&") {
            let more = self.parse_one(depth)?;
            let mut product = Vec::new();
            for left in &found {
                for right in &more {
                    product.push(left.iter().chain(right).cloned().collect());
                }
            }
            check_count(&product)?;
            found = product;
        }
        Ok(found)
    }

    fn parse_one(&mut self, depth: usize) -> Result<Vec<Alternative>, String> {
        if self.take("!") {
            return Err("`!`: a route cannot say what does not fit".to_owned());
        }
        if self.take("(") {
            let inner = self.parse_or(depth + 1)?;
            return match self.take(")") {
                true => Ok(inner),
                false => Err("a `)` is missing".to_owned()),
            };
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric());
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if name.is_empty() || !self.take("(") {
            return Err("a matcher is missing".to_owned());
        }
        let name = name.to_owned();
        let mut args = Vec::new();
        while !self.take(")") {
            args.push(self.parse_argument()?);
            self.take(",");
        }
        // In version 2 of the syntax, each argument of these is an alternative.
        let takes_several = ["Host", "Path", "PathPrefix", "Method"].contains(&name.as_str());
        if !takes_several || args.len() < 2 {
            return Ok(vec![vec![Matcher { name, args }]]);
        }
        let alternatives = args.into_iter().map(|arg| {
            let (name, args) = (name.clone(), vec![arg]);
            vec![Matcher { name, args }]
        });
        Ok(alternatives.collect())
    }

    fn parse_argument(&mut self) -> Result<String, String> {
        let quote = ["`", "\"", "'"].into_iter().find(|quote| self.take(quote));
        let quote = quote.ok_or("an argument has no quotes")?;
        let (argument, rest) = self.rest.split_once(quote).ok_or("a quote does not end")?;
        self.rest = rest;
        Ok(argument.to_owned())
    }
}

fn check_count(found: &[Alternative]) -> Result<(), String> {
    match found.len() > MAX_ALTERNATIVES {
        true => Err("it has too many alternatives".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        let one = |one: &Matcher| format!("{}:{}", one.name, one.args.join("="));
        let all = |all: &Alternative| all.iter().map(one).collect::<Vec<_>>().join("&");
        parse_rule(text).map(|found| found.iter().map(all).collect())
    }

    #[test]
    fn rules_are_multiplied_out() {
        for (text, expected) in [
            ("Host(`a`)", &["Host:a"][..]),
            ("Host(`a`) && Path(`/x`)", &["Host:a&Path:/x"]),
            ("Host(`a`, `b`)", &["Host:a", "Host:b"]),
            (
                "Host(`a`) && (PathPrefix(`/x`) || Path(\"/y\"))",
                &["Host:a&PathPrefix:/x", "Host:a&Path:/y"],
            ),
            (
                "Header(`X-V`,`2`)||Method(`GET`)",
                &["Header:X-V=2", "Method:GET"],
            ),
        ] {
            assert_eq!(shown(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "Host(`a`",
            "Host(a)",
            "!Host(`a`)",
            "Host(`a`) x",
            "(Host(`a`)",
        ] {
            assert!(shown(text).is_err(), "{text}");
        }
        let one = "(Host(`a`)||Host(`b`)||Host(`c`)||Host(`d`))";
        assert!(shown(&[one; 8].join("&&")).is_err());
        assert!(shown(&"(".repeat(10_000)).is_err());
    }
}
