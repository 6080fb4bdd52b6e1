//! JSON for scripts: a value, written on one line.

use crate::telemetry::json;

/// A JSON value.
#[derive(Clone, Debug)]
pub(super) enum Json {
    Null,
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    pub(super) fn text(text: &str) -> Json {
        Json::Text(text.to_owned())
    }

    /// The value on one line.
    pub(super) fn line(&self) -> String {
        let mut out = Vec::new();
        self.write(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Json::Null => out.extend_from_slice(b"null"),
            Json::Number(number) => json::number(out, *number),
            Json::Text(text) => json::string(out, text),
            Json::List(list) => {
                out.push(b'[');
                for (index, value) in list.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    value.write(out);
                }
                out.push(b']');
            }
            Json::Object(members) => {
                out.push(b'{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    json::name(out, name);
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

impl From<Option<String>> for Json {
    fn from(text: Option<String>) -> Json {
        text.map_or(Json::Null, Json::Text)
    }
}

impl From<Option<u64>> for Json {
    fn from(number: Option<u64>) -> Json {
        number.map_or(Json::Null, Json::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_one_line() {
        let value = Json::Object(vec![
            (
                "a",
                Json::List(vec![Json::Number(1), Json::Null, Json::text("x\n\"")]),
            ),
            ("b", Json::Object(Vec::new())),
            ("c", Json::List(Vec::new())),
        ]);
        assert_eq!(
            value.line(),
            "{\"a\":[1,null,\"x\\n\\\"\"],\"b\":{},\"c\":[]}"
        );
    }
}
