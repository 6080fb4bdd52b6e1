//! Reads a formula of token counts as a sum of counts with factors: CEL of Envoy AI gateway, and
//! `cost_expr` of APISIX.
//!
//! Only sums, differences, products with numbers, quotients by numbers, parentheses and the
//! conversions `uint`, `int` and `double` are read. Everything else has no weights.

use std::collections::BTreeMap;

/// Depth of parentheses, at most.
const MAX_DEPTH: usize = 32;

/// The factors of a sum, by the name of their count. The name of the constant is empty.
type Factors = BTreeMap<String, f64>;

/// Reads a formula. The error says which part has no weight.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut reader = FormulaReader {
        rest: text,
        depth: 0,
    };
    let sum = reader.sum()?;
    reader.skip_spaces();
    match reader.rest {
        "" if constant(&sum).is_none_or(|one| one != 0.0) && sum.contains_key("") => {
            Err("it has a part that does not depend on tokens".to_owned())
        }
        "" => Ok(sum),
        rest => Err(format!("`{rest}` is not a sum of tokens with factors")),
    }
}

struct FormulaReader<'t> {
    rest: &'t str,
    depth: usize,
}

impl FormulaReader<'_> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes one of these signs, if it is next.
    fn take(&mut self, signs: &str) -> Option<char> {
        self.skip_spaces();
        let next = self.rest.chars().next().filter(|c| signs.contains(*c))?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn sum(&mut self) -> Result<Factors, String> {
        let mut sum = self.product()?;
        while let Some(sign) = self.take("+-") {
            let factor = if sign == '-' { -1.0 } else { 1.0 };
            for (name, value) in self.product()? {
                *sum.entry(name).or_default() += factor * value;
            }
        }
        Ok(sum)
    }

    fn product(&mut self) -> Result<Factors, String> {
        let mut product = self.atom()?;
        while let Some(sign) = self.take("*/") {
            let other = self.atom()?;
            let (factors, number) = match (constant(&other), constant(&product), sign) {
                (Some(number), _, '*') => (product, number),
                (Some(number), _, _) if number != 0.0 => (product, 1.0 / number),
                (_, Some(number), '*') => (other, number),
                _ => return Err("it multiplies or divides counts".to_owned()),
            };
            let scale = |(name, value)| (name, value * number);
            product = factors.into_iter().map(scale).collect();
        }
        Ok(product)
    }

    fn atom(&mut self) -> Result<Factors, String> {
        if self.take("(").is_some() {
            return self.inner();
        }
        if self.take("-").is_some() {
            self.deepen()?;
            let negated = |(name, value): (String, f64)| (name, -value);
            let negated = self.atom()?.into_iter().map(negated).collect();
            self.depth -= 1;
            return Ok(negated);
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            let shown: String = self.rest.chars().take(20).collect();
            return Err(format!("`{shown}` is not a sum of tokens with factors"));
        }
        self.rest = rest;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let number = word.trim_end_matches('u').parse::<f64>();
            let number = number.map_err(|_| format!("`{word}` is no number"))?;
            return Ok(Factors::from([(String::new(), number)]));
        }
        if self.take("(").is_none() {
            return Ok(Factors::from([(word.to_owned(), 1.0)]));
        }
        match word {
            "uint" | "int" | "double" => self.inner(),
            _ => Err(format!("`{word}(..)` is no sum of tokens with factors")),
        }
    }

    fn deepen(&mut self) -> Result<(), String> {
        self.depth += 1;
        match self.depth > MAX_DEPTH {
            true => Err("its parentheses are too deep".to_owned()),
            false => Ok(()),
        }
    }

    /// Reads a sum up to its closing parenthesis.
    fn inner(&mut self) -> Result<Factors, String> {
        self.deepen()?;
        let sum = self.sum()?;
        self.depth -= 1;
        match self.take(")") {
            Some(_) => Ok(sum),
            None => Err("a parenthesis is not closed, or it compares".to_owned()),
        }
    }
}

/// Returns the number that a sum is, if it has no counts.
fn constant(factors: &Factors) -> Option<f64> {
    match factors.len() {
        1 => factors.get("").copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_factors() {
        let formula = "(input_tokens - cached) + (cached * 0.1) + uint(output_tokens) * 3 / 2";
        let sum = parse(formula).unwrap();
        let get = |name: &str| sum.get(name).copied().unwrap_or_default();
        assert!((get("cached") + 0.9).abs() < 1e-9);
        assert_eq!((get("input_tokens"), get("output_tokens")), (1.0, 1.5));
        assert_eq!(parse("2 * (a + b)").unwrap(), parse("2*a+b*2").unwrap());
        for wrong in [
            "a == uint(3) ? 100 : 0",
            "a * b",
            "1 / a",
            "max(a, b)",
            "a + 5",
            "",
            "(a",
            "a b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let deep = "(".repeat(100_000);
        assert!(parse(&deep).is_err());
        let minus = "-".repeat(100_000);
        assert!(parse(&minus).is_err());
    }
}
