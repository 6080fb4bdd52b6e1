//! `[error_page.NAME]`, and `error_pages` of routes.

use super::{codes, fine};
use crate::route::{PageSource, PageStatus};

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";

fn with(lines: &str) -> Vec<&'static str> {
    codes(&format!("{BASE}[error_page.down]\n{lines}\n"))
}

#[test]
fn a_route_has_all_pages_or_those_that_it_names() {
    let config = fine(&format!(
        "{BASE}[error_page.a]\nstatus = [\"502\"]\nbody = \"a\"\n\
         [error_page.b]\nstatus = [\"4xx\"]\nupstream = \"http://10.0.0.2\"\npath = \"/b?c\"\n\
         answer = \"upstream\"\n\
         [[route]]\npath = \"/none\"\nerror_pages = []\n\
         [[route]]\npath = \"/b\"\nerror_pages = [\"b\"]\n"
    ));
    assert_eq!(config.error_pages.len(), 2);
    let pages_of = |path: &str| {
        let mut routes = config.routes.iter();
        let route = routes.find(|route| route.path.to_string() == path);
        route.unwrap().error_pages.clone()
    };
    assert_eq!(pages_of("/*").len(), 2);
    assert!(pages_of("/none").is_empty());
    let [page] = &pages_of("/b")[..] else {
        panic!("one page");
    };
    assert_eq!(page.status, PageStatus::OfServer);
    let PageSource::Upstream(server) = &page.source else {
        panic!("{page:?}");
    };
    assert_eq!(server.target.as_ref().unwrap().as_str(), "/b?c");
    assert_eq!(
        &*config.upstreams[server.upstream].servers[0]
            .address
            .to_string(),
        "http://10.0.0.2:80"
    );
}

#[test]
fn wrong_pages_are_refused() {
    let status = "status = [\"502\"]\n";
    let of = |lines: &str| with(&format!("{status}{lines}"));
    assert_eq!(with("body = \"a\""), ["T104"]);
    assert_eq!(of(""), ["T104"]);
    assert_eq!(of("body = \"a\"\nredirect = \"/a\""), ["T124"]);
    assert_eq!(of("body = \"a\"\npath = \"/a\""), ["T124"]);
    assert_eq!(
        of("redirect = \"/a\"\ncontent_type = \"text/html\""),
        ["T124"]
    );
    assert_eq!(of("body = \"a\"\nanswer = \"upstream\""), ["T124"]);
    assert_eq!(of("body = \"a\"\nanswer = 99"), ["T105"]);
    assert_eq!(of("body = \"a\"\nanswer = 204"), ["T124"]);
    assert_eq!(of("redirect = \"/a\"\nanswer = 200"), ["T124"]);
    fine(&format!(
        "{BASE}[error_page.down]\n{status}body = \"\"\nanswer = 204\n"
    ));
    assert_eq!(of("redirect = \"https://{host}/\""), ["T125"]);
    assert_eq!(of("redirect = \"b.example\""), ["T125"]);
    assert_eq!(of("upstream = \"none\""), ["T118"]);
    assert_eq!(of("upstream = \"http://10.0.0.2\"\npath = \"a\""), ["T115"]);
    assert_eq!(of("file = \"/nowhere/x\""), ["T108"]);
    for (text, code) in [
        ("{nothing}", "T125"),
        ("{", "T125"),
        ("{path:id}", "T123"),
        ("{host:a}", "T123"),
    ] {
        let made = format!("body = \"{text}\"\nvariables = true");
        assert_eq!(of(&made), [code], "{text}");
    }
    assert_eq!(of("redirect = \"/a\"\nvariables = true"), ["T124"]);
    assert_eq!(with("status = [\"302\"]\nbody = \"a\""), ["T116"]);
    let unknown = format!("{BASE}[[route]]\npath = \"/a\"\nerror_pages = [\"x\"]\n");
    assert_eq!(codes(&unknown), ["T139"]);
}
