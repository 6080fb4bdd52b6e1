//! Places where tests have the admin panic, none of which is in a program that is shipped; and what
//! becomes of it: a request or a look is lost, and no other.

use http::Request;

use super::Desk;

/// What a file says that the admin cannot look at.
const AT_A_LOOK: &str = "# trap: admin";
/// What nobody can ask for.
const AT_A_REQUEST: &str = "trap";

/// At each look at what the workers count and tell, and as another configuration is followed.
pub(super) fn at_a_look(desk: &Desk) {
    let sight = &desk.grounds.sight;
    let says = sight.look(|view| view.config.written.text.contains(AT_A_LOOK));
    assert!(says != Some(true), "a trap at a look");
}

pub(super) fn at_a_request<B>(request: &Request<B>) {
    let asked = request.uri().query();
    assert!(
        asked != Some(AT_A_REQUEST),
        "a trap at a request: key=secret"
    );
}

mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::Arc;

    use super::*;
    use crate::admin::{Admin, Grounds};
    use crate::clock;
    use crate::server::trap::stage::{PATIENCE, Stage, exchange, plain, staged, told};
    use crate::telemetry::panics::{REST, panics};

    const TIMES: usize = 20;
    const FILE: &str = "admin = \"127.0.0.1:0\"";

    fn begin(stage: &Stage) -> Admin {
        let grounds = Grounds {
            sight: Arc::clone(&stage.sight),
            pulse: Arc::clone(&stage.pulse),
            listeners: Arc::clone(&stage.listeners),
            reload: stage.reload.clone(),
            file: Some(stage.file.clone()),
            shutdown: stage.course.subscribe(),
        };
        let settings = stage.sight.look(|view| view.config.admin.clone());
        Admin::spawn(&settings.unwrap().unwrap(), None, grounds, false).unwrap()
    }

    fn ask(admin: &Admin, place: &str) -> String {
        let stream = TcpStream::connect(admin.address()).unwrap();
        let request = plain(place).replace("Host: test", "Host: localhost");
        exchange(stream, &request)
    }

    fn eventually(what: &str, is_so: impl Fn() -> bool) {
        let began = clock::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(REST / 5);
        }
    }

    #[test]
    fn a_panic_costs_a_request_or_a_look_and_nothing_else() {
        let name = "admin::trap::tests::a_panic_costs_a_request_or_a_look_and_nothing_else";
        if let Some(output) = staged(name) {
            let told = told(&output);
            assert!(told.iter().all(|line| line.contains("admin")), "{told:?}");
            assert!(told.len() >= TIMES + 5, "{told:?}");
            return;
        }
        let stage = Stage::open(FILE);
        stage.is_well();
        let admin = begin(&stage);
        let is_well = || ask(&admin, "/healthz").starts_with("HTTP/1.1 200 ");
        let mut kept = TcpStream::connect(admin.address()).unwrap();
        for _ in 0..TIMES {
            let answer = ask(&admin, "/healthz?trap");
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
            assert!(answer.contains("problem+json"), "{answer}");
        }
        kept.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        kept.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");

        let (began, before) = (clock::now(), panics());
        stage.reload(&format!("{FILE} {AT_A_LOOK}"));
        eventually("it looks again and again", || panics() >= before + 5);
        assert!(is_well());
        stage.is_well();
        stage.reload(FILE);
        let marked = || ask(&admin, "/api/v1/traffic").contains("\"reload\"");
        eventually("it looks as before", marked);
        // Ten looks of one kind each second, one of another.
        let most = began.elapsed().as_millis() / REST.as_millis() + 10;
        assert!(u128::from(panics() - before) < most, "it never rests");
        // And it follows what it is told.
        stage.reload("");
        let gone = || TcpStream::connect(admin.address()).is_err();
        eventually("nobody listens any more", gone);
        stage.close().unwrap();
        admin.end();
    }
}
