//! Header changes.

use super::*;

#[test]
fn what_frames_messages_is_out_of_reach() {
    let both = |name: &'static str| {
        let name = HeaderName::from_static(name);
        [Direction::Up, Direction::Down]
            .map(|direction| HeaderChange::may_touch(&name, direction).is_ok())
    };
    for name in [
        "content-length",
        "transfer-encoding",
        "trailer",
        "te",
        "upgrade",
        "keep-alive",
        "proxy-connection",
        "http2-settings",
        "expect",
    ] {
        assert_eq!(both(name), [false, false], "{name}");
    }
    assert_eq!(both("connection"), [true, false]);
    assert_eq!(both("host"), [false, true]);
    assert_eq!(both("via"), [false, true]);
    assert_eq!(both("x-forwarded-for"), [true, true]);
}
