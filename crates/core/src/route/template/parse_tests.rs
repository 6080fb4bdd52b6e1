//! Templates as people write them.

use super::*;

fn refused(text: &str) -> String {
    Template::parse(text).unwrap_err().to_string()
}

#[test]
fn texts_and_variables_follow_each_other() {
    let pieces = |text| Template::parse(text).unwrap().pieces;
    let text = |text: &str| TemplatePiece::Text(text.into());
    assert_eq!(pieces(""), []);
    assert_eq!(pieces("a"), [text("a")]);
    assert_eq!(pieces("{host}"), [TemplatePiece::Variable(Variable::Host)]);
    assert_eq!(
        pieces("a{path:id}{header:X-A}b"),
        [
            text("a"),
            TemplatePiece::Variable(Variable::PathParam("id".into())),
            TemplatePiece::Variable(Variable::Header(HeaderName::from_static("x-a"))),
            text("b"),
        ]
    );
    assert_eq!(pieces("{{host}} {{}}"), [text("{host} {}")]);
}

#[test]
fn what_cannot_be_filled_in_says_why() {
    assert!(refused("{host").starts_with("a `{` is not closed"));
    assert!(refused("host}").starts_with("a `}` closes nothing"));
    assert_eq!(
        refused("{client-ip}"),
        "there is no `{client-ip}`; did you mean `{client_ip}`?"
    );
    assert!(refused("{}").contains("lists them: client_ip"));
    assert!(refused("{env:HOME}").contains("lists them: client_ip"));
    assert!(refused("{header:a b}").starts_with("`a b` is no name"));
    assert!(refused("{cookie:}").starts_with("`` is no name"));
    assert!(refused("a\r\nb").starts_with("a header cannot hold"));
    assert!(refused(&"a".repeat(MAX_TEXT + 1)).starts_with("longer"));
    assert!(refused(&"{host}".repeat(MAX_VARIABLES + 1)).starts_with("more"));
}
