//! Regular expressions beside other paths.

use super::RouteTable;
use super::tests::{finds, found, route, table};

#[test]
fn expressions_come_after_paths_that_end_and_before_the_rest_in_their_order() {
    let table = table(&[
        "/*",
        r"regex:\.php$",
        "/admin/*",
        "/a/x.php",
        "regex:/secret",
        "/{any}",
        r"h.example/static/*",
        "GET regex:^/read/",
        "regex:^/agent +user-agent=regex:(?i)wget",
    ]);
    finds(&table, "GET h/a/x.php", "/a/x.php");
    finds(&table, "GET h/x.php", "/{any} any=x.php");
    finds(&table, "GET h/admin/secret.php", r"regex:\.php$");
    finds(&table, "GET h/admin/secret", "regex:/secret");
    finds(&table, "GET h/admin/x", "/admin/*");
    finds(&table, "GET h/a/%2ephp", r"regex:\.php$");
    finds(&table, "GET h.example/static/x.php", "h.example/static/*");
    finds(&table, "GET h.example/other/x.php", r"regex:\.php$");
    finds(&table, "GET h/read/x", "GET regex:^/read/");
    finds(&table, "POST h/read/x", "/*");
    let agent = "regex:^/agent +user-agent=regex:(?i)wget";
    finds(&table, "GET h/agent/a +user-agent=WGET/1", agent);
    finds(&table, "GET h/agent/a +user-agent=curl", "/*");
    // One reading is denied, the other is not.
    assert_eq!(found(&table, "GET h/secret/../x/y"), None);
}

#[test]
fn an_expression_knows_letter_case_by_its_route() {
    let table = table(&["(i) regex:^/secret", "regex:^/Exact", "/*"]);
    finds(&table, "GET h/SECRET/x", "(i) regex:^/secret");
    finds(&table, "GET h/Exact/x", "regex:^/Exact");
    finds(&table, "GET h/exact/x", "/*");
}

#[test]
fn letter_case_beyond_ascii_gets_around_no_expression() {
    let table = table(&[
        "(i) regex:^/token$",
        r"regex:^/kiss$",
        r"(i) regex:^/\xc3\xa9t",
        "/*",
    ]);
    // U+212A, the sign of Kelvin, is a `k`; U+017F is an `s`.
    finds(&table, "GET h/to%E2%84%AAen", "(i) regex:^/token$");
    finds(&table, "GET h/%C3%89T", r"(i) regex:^/\xc3\xa9t");
    finds(&table, "GET h/ki%C5%BFs", "/*");
}

#[test]
fn the_same_expression_twice_is_a_conflict() {
    let routes = ["regex:a", "regex:b", "GET regex:a", "regex:a"];
    let conflicts = RouteTable::new(routes.map(route).to_vec()).unwrap_err();
    let pairs: Vec<_> = conflicts.iter().map(|c| (c.first, c.second)).collect();
    assert_eq!(pairs, [(0, 3)]);
}

#[test]
fn a_host_by_expression_comes_after_names_and_before_every_host() {
    let table = table(&[
        "/*",
        r"^(www|api)\d+\.EXAMPLE\.com$@/*",
        "^www@/*",
        "www1.example.com/*",
        "*.below.example/*",
    ]);
    finds(&table, "GET www1.example.com/a", "www1.example.com/*");
    let by_number = r"^(www|api)\d+\.EXAMPLE\.com$@/*";
    finds(&table, "GET www2.example.com/a", by_number);
    finds(&table, "GET api7.example.com/a", by_number);
    finds(&table, "GET www.test/a", "^www@/*");
    finds(&table, "GET www.below.example/a", "*.below.example/*");
    finds(&table, "GET api.example.com/a", "/*");
}

#[test]
fn a_query_counts_however_it_is_written() {
    let table = table(&[
        "/a ?debug",
        "/a ?v=2",
        "/a ?v=regex:^[0-9]+$",
        "/a ?v=2 ?debug",
        "/a",
    ]);
    for query in [
        "?v=2", "?x=1&v=2", "?v=1&v=2", "?%76=%32", "?x=1;v=2", "?v=\"2\"",
    ] {
        finds(&table, &format!("GET h/a {query}"), "/a ?v=2");
    }
    finds(&table, "GET h/a ?v=31", "/a ?v=regex:^[0-9]+$");
    finds(&table, "GET h/a ?debug", "/a ?debug");
    finds(&table, "GET h/a ?debug=0&v=2", "/a ?v=2 ?debug");
    finds(&table, "GET h/a ?v=b", "/a");
    finds(&table, "GET h/a ?V=2", "/a");
    finds(&table, "GET h/a", "/a");
}
