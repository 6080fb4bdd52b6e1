//! Counts across reloads: a number that is changed neither resets nor refills anything.

use super::{Gate, assert_said};
use crate::house::Answer;

const TEN: &str = "upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"10/h\"\n";

fn remaining(answer: &Answer) -> Option<u64> {
    answer.header("x-ratelimit-remaining")?.parse().ok()
}

#[test]
fn a_changed_rate_keeps_what_is_counted() {
    let gate = Gate::start(TEN);
    for left in (4..10).rev() {
        assert_eq!(remaining(&gate.proxy.get("/")), Some(left));
    }
    let said = gate.reload(&TEN.replace("10/h", "8/h"));
    assert_said(&said, "limit default: 10/h -> 8/h");
    assert_eq!(remaining(&gate.proxy.get("/")), Some(1));
    gate.reload(&TEN.replace("10/h", "3/h"));
    let denied = gate.proxy.get("/");
    assert_eq!((denied.status, remaining(&denied)), (429, Some(0)));
    gate.reload(&TEN.replace("10/h", "20/h"));
    assert_eq!(remaining(&gate.proxy.get("/")), Some(12));
}

#[test]
fn a_window_of_another_length_is_told_to_begin_anew() {
    let gate = Gate::start(TEN);
    gate.proxy.get("/");
    let said = gate.reload(&TEN.replace("10/h", "10/min"));
    assert_said(&said, "limit default: its counts begin anew");
    assert_eq!(remaining(&gate.proxy.get("/")), Some(9));
    gate.reload(TEN);
    assert_eq!(
        remaining(&gate.proxy.get("/")),
        Some(8),
        "the hour was not forgotten"
    );
}
