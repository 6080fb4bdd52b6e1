//! Servers of names whose addresses change.

use super::*;
use crate::clock::Sweep;
use crate::config::UpstreamSettings;
use crate::upstream::pool::Upstream;

fn ip(text: &str) -> SocketAddr {
    format!("{text}:80").parse().unwrap()
}

fn at(texts: &[&str]) -> Vec<Vec<SocketAddr>> {
    let places = pair_families(texts.iter().map(|text| ip(text)));
    places.into_iter().map(|place| place.to_vec()).collect()
}

#[test]
fn addresses_of_two_families_are_one_server() {
    assert_eq!(at(&[]), Vec::<Vec<SocketAddr>>::new());
    assert_eq!(
        at(&["[::1]", "127.0.0.1"]),
        [[ip("[::1]"), ip("127.0.0.1")]]
    );
    assert_eq!(
        at(&["127.0.0.1", "[::1]"]),
        [[ip("127.0.0.1"), ip("[::1]")]]
    );
    let three = [
        vec![ip("10.0.0.1")],
        vec![ip("10.0.0.2")],
        vec![ip("10.0.0.3")],
    ];
    assert_eq!(at(&["10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.1"]), three);
    let uneven = [vec![ip("10.0.0.1"), ip("[::1]")], vec![ip("10.0.0.2")]];
    assert_eq!(at(&["10.0.0.2", "[::1]", "10.0.0.1"]), uneven);
}

const NAME: &str = "app.test";

fn settings(hosts: &[&str]) -> UpstreamSettings {
    let server = |host: &&str| ServerAddress::Http((*host).into(), 80).into();
    UpstreamSettings::new("app", hosts.iter().map(server).collect())
}

/// An upstream with a server `app.test` and one without a name.
struct Upstreams(Arc<Upstream>);

impl Upstreams {
    fn new(slow_start: bool) -> Upstreams {
        let mut settings = settings(&[NAME, "10.9.9.9"]);
        settings.slow_start = slow_start.then_some(Duration::from_secs(3600));
        let upstream = Upstream::new(None, &settings, Sweep::new(), &Vitals::default());
        Upstreams(upstream)
    }

    fn with_hosts(hosts: &[&str], vitals: &Vitals) -> Upstreams {
        Upstreams(Upstream::new(None, &settings(hosts), Sweep::new(), vitals))
    }

    fn note(&self, texts: &[&str]) -> Vec<Arc<Server>> {
        let name = ServerAddress::Http("app.test".into(), 80);
        let places = pair_families(texts.iter().map(|text| ip(text)));
        self.0.servers.update(&HashMap::from([(name, places)]));
        self.servers()
    }

    fn servers(&self) -> Vec<Arc<Server>> {
        self.0.servers.set.load().servers.clone()
    }

    fn places(&self) -> Vec<String> {
        let place = |server: &Arc<Server>| server.place.to_string();
        self.servers().iter().map(place).collect()
    }
}

#[test]
fn each_address_is_a_server_and_those_that_stay_are_the_same() {
    let upstreams = Upstreams::new(false);
    assert_eq!(
        upstreams.places(),
        ["http://app.test:80", "http://10.9.9.9:80"]
    );
    let two = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
    let want = [
        "http://10.0.0.1:80",
        "http://10.0.0.2:80",
        "http://10.9.9.9:80",
    ];
    assert_eq!(upstreams.places(), want);
    // In another order: nothing has changed.
    let again = upstreams.note(&["10.0.0.2", "10.0.0.1"]);
    assert!(
        two.iter()
            .zip(&again)
            .all(|(one, other)| Arc::ptr_eq(one, other))
    );
    let other = upstreams.note(&["10.0.0.3", "10.0.0.2"]);
    assert!(Arc::ptr_eq(&two[1], &other[0]) && Arc::ptr_eq(&two[2], &other[2]));
    assert_eq!(upstreams.places()[1], "http://10.0.0.3:80");
    // Every one is asked for the name.
    assert!(other[..2].iter().all(|server| server.host == "app.test"));
}

#[test]
fn the_last_good_answer_is_kept() {
    let upstreams = Upstreams::new(false);
    let before = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
    upstreams.0.servers.update(&HashMap::new());
    let after = upstreams.servers();
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(one, other)| Arc::ptr_eq(one, other))
    );
}

#[test]
fn one_that_moves_keeps_what_is_known_of_it_but_not_its_place() {
    let upstreams = Upstreams::new(false);
    let first = upstreams.servers();
    let second = upstreams.note(&["10.0.0.1"]);
    let third = upstreams.note(&["10.0.0.2"]);
    assert!(Arc::ptr_eq(&first[0].health, &third[0].health));
    assert!(!Arc::ptr_eq(&second[0], &third[0]));
    assert!(third[0].found[..] == [ip("10.0.0.2")]);
}

#[test]
fn only_addresses_that_come_later_start_slowly() {
    let upstreams = Upstreams::new(true);
    let warmth = |server: &Arc<Server>| server.health.warmth(Duration::from_secs(3600));
    let servers = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
    assert!(servers.iter().all(|server| warmth(server) == 100));
    let servers = upstreams.note(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(
        servers.iter().map(warmth).collect::<Vec<_>>(),
        [100, 100, 10, 100]
    );
}

#[test]
fn an_address_keeps_its_health_when_others_come_and_go() {
    let upstreams = Upstreams::new(false);
    let one = upstreams.note(&["10.0.0.1"]);
    let two = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
    assert_eq!(upstreams.places()[0], "http://10.0.0.1:80");
    assert!(Arc::ptr_eq(&one[0].health, &two[0].health));
    assert!(Arc::ptr_eq(&one[0].in_flight, &two[0].in_flight));
    assert!(!Arc::ptr_eq(&one[0].health, &two[1].health));
    // The name is a place again, which was that of the other address.
    let other = upstreams.note(&["10.0.0.2"]);
    assert_eq!(upstreams.places()[0], "http://app.test:80");
    assert!(Arc::ptr_eq(&two[1].health, &other[0].health));
    assert!(Arc::ptr_eq(&two[1].in_flight, &other[0].in_flight));
}

#[test]
fn workers_that_look_up_at_other_times_share_the_health_of_an_address() {
    let vitals = Vitals::default();
    let workers = [(); 2].map(|()| Upstreams::with_hosts(&[NAME, "10.9.9.9"], &vitals));
    let first = |worker: &Upstreams| Arc::clone(&worker.servers()[0].health);
    let mut known = None;
    for texts in [&["10.0.0.1"][..], &["10.0.0.1", "10.0.0.2"], &["10.0.0.1"]] {
        for worker in &workers {
            worker.note(texts);
            let health = known.get_or_insert_with(|| first(worker));
            assert!(Arc::ptr_eq(health, &first(worker)), "{texts:?}");
        }
    }
    for worker in &workers {
        worker.note(&["10.0.0.1", "10.0.0.2"]);
    }
    let second = Arc::clone(&workers[0].servers()[1].health);
    for worker in &workers {
        worker.note(&["10.0.0.2"]);
        assert!(Arc::ptr_eq(&second, &first(worker)));
    }
}

#[test]
fn a_server_that_is_listed_twice_stays_two_servers() {
    let upstreams =
        Upstreams::with_hosts(&[NAME, NAME, "10.9.9.9", "10.9.9.9"], &Vitals::default());
    let before = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
    assert_eq!(before.len(), 6);
    let again = upstreams.note(&["10.0.0.2", "10.0.0.1"]);
    let mut pairs = before.iter().zip(&again);
    assert!(again.len() == 6 && pairs.all(|(one, other)| Arc::ptr_eq(one, other)));
    // Without an answer as well.
    upstreams.0.servers.update(&HashMap::new());
    assert_eq!(upstreams.servers().len(), 6);
}
