//! Rules of routers: ``Host(`a`) && (PathPrefix(`/x`) || Path(`/y`))`` as alternatives of matchers.

/// Alternatives of one rule, at most.
const MAX_ALTERNATIVES: usize = 64;
/// Parentheses within parentheses, at most.
const MAX_DEPTH: usize = 16;

/// One matcher: its name and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matcher {
    pub(super) name: String,
    pub(super) args: Vec<String>,
}

/// All of them must fit.
pub(super) type All = Vec<Matcher>;

/// Reads a rule as alternatives, one of which must fit.
pub(super) fn read(text: &str) -> Result<Vec<All>, String> {
    let mut reader = Reader { text, at: 0 };
    let all = reader.any(0)?;
    reader.blanks();
    match reader.rest().is_empty() {
        true => Ok(all),
        false => Err(format!("`{}` is left over", reader.rest())),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn take(&mut self, word: &str) -> bool {
        self.blanks();
        let is_there = self.rest().starts_with(word);
        self.at += if is_there { word.len() } else { 0 };
        is_there
    }

    /// `a || b`
    fn any(&mut self, depth: usize) -> Result<Vec<All>, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deep".to_owned());
        }
        let mut found = self.all(depth)?;
        while self.take("||") {
            found.extend(self.all(depth)?);
            bounded(&found)?;
        }
        Ok(found)
    }

    /// `a && b`, multiplied out.
    fn all(&mut self, depth: usize) -> Result<Vec<All>, String> {
        let mut found = self.one(depth)?;
        while self.take("&&") {
            let more = self.one(depth)?;
            let mut product = Vec::new();
            for left in &found {
                for right in &more {
                    product.push(left.iter().chain(right).cloned().collect());
                }
            }
            bounded(&product)?;
            found = product;
        }
        Ok(found)
    }

    fn one(&mut self, depth: usize) -> Result<Vec<All>, String> {
        if self.take("!") {
            return Err("`!`: a route cannot say what does not fit".to_owned());
        }
        if self.take("(") {
            let inner = self.any(depth + 1)?;
            return match self.take(")") {
                true => Ok(inner),
                false => Err("a `)` is missing".to_owned()),
            };
        }
        self.blanks();
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        let name = rest[..end.unwrap_or(rest.len())].to_owned();
        self.at += name.len();
        if name.is_empty() || !self.take("(") {
            return Err("a matcher is missing".to_owned());
        }
        let mut args = Vec::new();
        while !self.take(")") {
            args.push(self.arg()?);
            self.take(",");
        }
        // Of version 2: several hosts or paths in one.
        let several = matches!(name.as_str(), "Host" | "Path" | "PathPrefix" | "Method");
        Ok(match several && args.len() > 1 {
            true => args
                .into_iter()
                .map(|arg| {
                    vec![Matcher {
                        name: name.clone(),
                        args: vec![arg],
                    }]
                })
                .collect(),
            false => vec![vec![Matcher { name, args }]],
        })
    }

    fn arg(&mut self) -> Result<String, String> {
        self.blanks();
        let quote = self
            .rest()
            .chars()
            .next()
            .filter(|c| matches!(c, '`' | '"' | '\''));
        let quote = quote.ok_or("an argument has no quotes")?;
        let inner = &self.rest()[1..];
        let end = inner.find(quote).ok_or("a quote does not end")?;
        let arg = inner[..end].to_owned();
        self.at += end + 2;
        Ok(arg)
    }
}

fn bounded(found: &[All]) -> Result<(), String> {
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
        let all = |all: &All| all.iter().map(one).collect::<Vec<_>>().join("&");
        read(text).map(|found| found.iter().map(all).collect())
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
