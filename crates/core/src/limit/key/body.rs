//! Parts of keys that are members of a request's body.
//!
//! Clients choose them all. A body that was not read has no members, so such a part is missing
//! and the limit's `missing` decides: a client gains nothing by hiding them.

use std::sync::Arc;

use crate::usage::number::rounded_up;
use crate::usage::request::{BodyMember, BodyMembers, BodyValue, RequestTable};

/// The members of a request's body, with the table by which it was read.
#[derive(Clone, Debug)]
pub struct BodyFacts {
    pub table: Arc<RequestTable>,
    pub members: BodyMembers,
}

impl BodyFacts {
    /// The value of a member. A member that the table does not have is missing.
    pub fn value(&self, member: &BodyMember) -> &BodyValue {
        let index = self.table.members.iter().position(|one| one == member);
        let value = index.and_then(|index| self.members.values.get(index));
        value.unwrap_or(&BodyValue::Missing)
    }

    /// The value of a member as a number, rounded up. `None` if it is missing, ambiguous or no
    /// number.
    pub fn number(&self, member: &BodyMember) -> Option<u64> {
        match self.value(member) {
            BodyValue::One(text) => rounded_up(text),
            BodyValue::Missing | BodyValue::Ambiguous => None,
        }
    }
}

/// The number of a member's word in an identity. Counts in Redis outlive this process: never
/// renumber.
pub(super) fn kind(member: &BodyMember) -> u8 {
    match member {
        BodyMember::Path(_) => 17,
        BodyMember::McpMethod | BodyMember::McpTool => 18,
        BodyMember::GraphqlOperation => 19,
    }
}

/// The name after the colon. It is part of identities: never change it.
pub(super) fn name(member: &BodyMember) -> &str {
    match member {
        BodyMember::Path(path) => path.as_str(),
        BodyMember::McpMethod => "method",
        BodyMember::McpTool => "tool",
        BodyMember::GraphqlOperation => "operation",
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::limit::Missing;
    use crate::limit::key::{ApiKeys, Derived, Facts, Given, HashSecret, Key, ListedValues, Part};
    use crate::path::CanonicalPath;

    const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

    fn one(text: &str) -> BodyValue {
        BodyValue::One(text.into())
    }

    /// Derives a key of a request whose body has this model and this tool.
    fn derive(key: &Key, body: Option<[BodyValue; 2]>) -> Derived {
        let members = ["body:model", "mcp:tool"].map(|text| match Part::parse(text) {
            Ok(Part::Body(member)) => member,
            other => panic!("{other:?}"),
        });
        let body = body.map(|values| BodyFacts {
            table: Arc::new(RequestTable::new(members.to_vec(), Default::default())),
            members: BodyMembers {
                values: values.to_vec(),
                ..BodyMembers::default()
            },
        });
        let facts = Facts {
            ip: "192.0.2.7".parse().unwrap(),
            api_key: &ApiKeys::default(),
            standing: None,
            registered: None,
            method: &Method::POST,
            host: "h",
            path: &CanonicalPath::parse("/").unwrap(),
            query: None,
            headers: &HeaderMap::new(),
            route: "r",
            params: &[],
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
            body: body.as_ref(),
        };
        key.derive(&facts, Missing::Ip, &SECRET)
    }

    fn key(text: &str) -> Key {
        Key::parse([text]).unwrap()
    }

    #[test]
    fn a_member_is_a_key() {
        let model = key("body:model");
        let gpt = derive(&model, Some([one("gpt"), BodyValue::Missing]));
        assert_eq!(gpt, derive(&model, Some([one("gpt"), one("search")])));
        assert_ne!(
            gpt,
            derive(&model, Some([one("claude"), BodyValue::Missing]))
        );
        let tool = derive(&key("mcp:tool"), Some([BodyValue::Missing, one("gpt")]));
        assert_ne!(gpt, tool, "the kind is part of the identity");
    }

    #[test]
    fn a_body_that_was_not_read_has_no_members() {
        let model = key("body:model");
        let by_address = derive(&Key::ip(), None);
        assert_eq!(derive(&model, None), by_address);
        let missing = [BodyValue::Missing, BodyValue::Missing];
        assert_eq!(derive(&model, Some(missing)), by_address);
        let empty = [one(""), BodyValue::Missing];
        assert_eq!(derive(&model, Some(empty)), by_address);
        let unread = derive(&key("body:other"), Some([one("gpt"), one("search")]));
        assert_eq!(unread, by_address);
    }

    #[test]
    fn two_values_of_one_member_are_refused() {
        let body = || Some([BodyValue::Ambiguous, one("search")]);
        assert_eq!(derive(&key("body:model"), body()), Derived::Ambiguous);
        assert_ne!(derive(&key("mcp:tool"), body()), Derived::Ambiguous);
    }

    #[test]
    fn a_number_is_rounded_up() {
        let member = BodyMember::Path(crate::usage::paths::MemberPath::parse("n").unwrap());
        for (text, number) in [
            ("1000.5", Some(1001)),
            ("1e30", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("-1", None),
            ("many", None),
        ] {
            let body = BodyFacts {
                table: Arc::new(RequestTable::new(vec![member.clone()], Default::default())),
                members: BodyMembers {
                    values: vec![one(text)],
                    ..BodyMembers::default()
                },
            };
            assert_eq!(body.number(&member), number, "{text}");
        }
    }

    #[test]
    fn values_that_are_not_listed_count_as_one() {
        let part = Part::parse("mcp:tool").unwrap();
        let mut listed = key("mcp:tool");
        listed.listed = vec![ListedValues::new(part, ["search", "fetch"])];
        let tool = |key: &Key, tool| derive(key, Some([BodyValue::Missing, one(tool)]));
        let search = tool(&listed, "search");
        assert_eq!(search, tool(&key("mcp:tool"), "search"));
        assert_ne!(search, tool(&listed, "fetch"));
        assert_ne!(search, tool(&listed, "invented"));
        assert_eq!(tool(&listed, "other"), tool(&listed, "invented"));
        let missing = [BodyValue::Missing, BodyValue::Missing];
        assert_eq!(derive(&listed, Some(missing)), derive(&Key::ip(), None));
        for value in ["search", "invented"] {
            let given = Given::text(Part::parse("mcp:tool").unwrap(), value);
            let given = listed.counted_given(given);
            let named = Derived::Hash(Given::tag(&[given], &SECRET));
            assert_eq!(
                named,
                tool(&listed, value),
                "as an operator names it: {value}"
            );
        }
    }

    #[test]
    fn names_of_members_are_checked() {
        let error = |text| Part::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("mcp:name"),
            "`mcp` has no `name`; write `mcp:method` or `mcp:tool`"
        );
        assert_eq!(
            error("graphql:name"),
            "`graphql` has no `name`; write `graphql:operation`"
        );
        assert_eq!(
            error("body:a..b"),
            "a name is missing; write for example `stats.tokens_in`"
        );
        assert_eq!(error("body"), "`body` needs a name: `body:NAME`");
        for text in [
            "body:params.model",
            "mcp:method",
            "mcp:tool",
            "graphql:operation",
        ] {
            assert_eq!(Part::parse(text).unwrap().to_string(), text);
        }
    }
}
