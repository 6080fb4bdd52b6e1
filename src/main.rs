//! The door: nothing is behind it yet.

fn main() {}
