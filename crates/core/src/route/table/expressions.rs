//! A walk of a trie that has regular expressions beside it.

use super::Walk;
use crate::route::Route;
use crate::route::trie::Node;

impl<'t, 'p> Walk<'t, '_, 'p> {
    /// The best route: a path that ends, then the first expression, then a path with `/*`.
    pub(super) fn with_expressions(&mut self, segments: &'p str) -> Option<&'t Route> {
        let trie = self.trie;
        if let Some(route) = self.ended(trie.root(), segments) {
            return Some(route);
        }
        for index in trie.expressions() {
            let route = &self.table.routes[*index as usize];
            if route.path.matches_text(self.exact)
                && let Some(route) = self.best(std::slice::from_ref(index))
            {
                return Some(route);
            }
        }
        self.from(trie.root(), segments)
    }

    /// The best route whose pattern ends where the path does.
    fn ended(&mut self, node: &'t Node, left: &'p str) -> Option<&'t Route> {
        let trie = self.trie;
        if left.is_empty() {
            return self.best(trie.here(node));
        }
        let (segment, left) = left.split_once('/').unwrap_or((left, ""));
        if let Some(child) = trie.literal(node, segment)
            && let Some(route) = self.ended(trie.node(child), left)
        {
            return Some(route);
        }
        let child = node.param?;
        self.values.push(segment);
        let found = self.ended(trie.node(child), left);
        if found.is_none() {
            self.values.pop();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::RouteTable;
    use super::super::tests::{finds, found, route, table};

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
}
