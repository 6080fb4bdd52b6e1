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
fn the_same_expression_twice_is_a_conflict() {
    let routes = ["regex:a", "regex:b", "GET regex:a", "regex:a"];
    let conflicts = RouteTable::new(routes.map(route).to_vec()).unwrap_err();
    let pairs: Vec<_> = conflicts.iter().map(|c| (c.first, c.second)).collect();
    assert_eq!(pairs, [(0, 3)]);
}
