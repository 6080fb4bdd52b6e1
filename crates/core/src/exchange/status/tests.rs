//! What a kept answer depends on.

use super::*;
use crate::limit::{AnchorDay, Key, KeyHash, Rate, Rule};

/// The rate, the anchor and the key's number of one client.
#[derive(Clone, Copy)]
struct Client {
    rate: &'static str,
    anchor: Option<AnchorDay>,
    tag: u8,
}

const CLIENT: Client = Client {
    rate: "5/h",
    anchor: None,
    tag: 1,
};

fn query(asked: Client) -> StatusQuery<'static> {
    let rule = Rule::by_size(Rate::parse(asked.rate).unwrap());
    let limit = Arc::new(Limit::new("default", &[rule], Key::ip()));
    let client = CheckedClient {
        tag: KeyHash([asked.tag; 16]),
        anchor: asked.anchor,
    };
    let mut query = empty();
    query.admission.add(&limit, &limit.windows, client, 0, None);
    query
}

fn empty() -> StatusQuery<'static> {
    StatusQuery {
        admission: Admission::default(),
        not_told: Vec::new(),
        block: None,
        ip: IpAddr::from([192, 0, 2, 7]),
    }
}

#[test]
fn an_answer_is_kept_for_all_that_it_depends_on() {
    assert_eq!(query(CLIENT).fingerprint(), query(CLIENT).fingerprint());
    let block = |until| StatusQuery {
        block: Some(BlockReport { until }),
        ..empty()
    };
    let all = [
        empty(),
        block(None),
        block(Some(60)),
        block(Some(61)),
        StatusQuery {
            not_told: vec!["plan"],
            ..empty()
        },
        query(CLIENT),
        query(Client { tag: 2, ..CLIENT }),
        query(Client {
            rate: "50/h",
            ..CLIENT
        }),
        query(Client {
            anchor: AnchorDay::of_month(15),
            ..CLIENT
        }),
        StatusQuery {
            block: Some(BlockReport { until: None }),
            ..query(CLIENT)
        },
    ];
    let mut hashes: Vec<u64> = all.iter().map(StatusQuery::fingerprint).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), all.len());
}
