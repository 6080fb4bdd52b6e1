//! `[access_log.NAME]`, and `access_logs` of routes.

use super::{codes, fine};
use crate::config::LogTarget;

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";

#[test]
fn a_route_has_all_logs_or_those_that_it_names() {
    let config = fine(&format!(
        "{BASE}[access_log.a]\nto = \"stdout\"\nformat = \"{{status}}\"\n\
         [access_log.b]\nto = \"/logs/b\"\nformat = \"{{{{\\\"a\\\": {{status}}}}}}\"\n\
         [[route]]\npath = \"/none\"\naccess_logs = []\n\
         [[route]]\npath = \"/b\"\naccess_logs = [\"b\"]\n"
    ));
    let logs_of = |path: &str| {
        let mut routes = config.routes.iter();
        let route = routes.find(|route| route.path.to_string() == path);
        route.unwrap().access_logs.clone()
    };
    assert_eq!(logs_of("/*").len(), 2);
    assert!(logs_of("/none").is_empty());
    let [log] = &logs_of("/b")[..] else {
        panic!("one log");
    };
    let named = &config.access_logs[log.place];
    assert_eq!((log.place, &*named.name), (1, "b"));
    assert_eq!(named.target, LogTarget::File("/logs/b".into()));
}

#[test]
fn wrong_logs_are_refused() {
    let with = |lines: &str| codes(&format!("{BASE}[access_log.a]\n{lines}\n"));
    let format = |text: &str| with(&format!("to = \"stdout\"\nformat = \"{text}\""));
    assert_eq!(with("to = \"stdout\""), ["T104"]);
    assert_eq!(with("format = \"a\""), ["T104"]);
    assert_eq!(with("to = \"off\"\nformat = \"a\""), ["T124"]);
    assert_eq!(format("{bytes_sant}"), ["T125"]);
    assert_eq!(format("{path:id}"), ["T123"]);
    assert_eq!(format("{host:name}"), ["T123"]);
    let only = |key: &str| with(&format!("to = \"stdout\"\nformat = \"a\"\n{key}"));
    assert_eq!(
        only("if = \"{query:a}{bytes_sent}\"\nstatus = [\"4xx\", \"503\"]"),
        [""; 0]
    );
    assert_eq!(only("if = \"{path:id}\""), ["T123"]);
    assert_eq!(only("if = \"{a}\""), ["T125"]);
    assert_eq!(only("status = [\"6xx\"]"), ["T116"]);
    let unknown = format!("{BASE}[[route]]\npath = \"/a\"\naccess_logs = [\"x\"]\n");
    assert_eq!(codes(&unknown), ["T106"]);
    // Only lines of logs have it.
    let header =
        format!("{BASE}[[route]]\npath = \"/a\"\nheaders_down = {{ x-a = \"{{bytes_sent}}\" }}\n");
    assert_eq!(codes(&header), ["T125"]);
}
