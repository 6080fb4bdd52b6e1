//! `/api/v1/usage`: what each client used, by day, from the ledger. `tidegate usage` prints it.

use std::sync::Arc;

use super::request::ApiRequest;
use super::response::ApiError;
use super::schema::{described, words};
use crate::billing::BillingShared;
use crate::clock;
use crate::config::{StoreKind, StoreSettings};
use crate::ledger::{
    Date, DayLines, LedgerCount, LedgerGroups, LedgerPeriod, LedgerRow, LedgerSettings, days_of,
};
use crate::server::introspection::Snapshot;
use crate::store::StoreError;
use crate::store::redis::ledger_client::LedgerReader;

/// Rows of an answer, at most.
const MAX_ROWS: usize = 200_000;
/// Days of a range, at most.
const MAX_DAYS: i32 = 4000;

pub(super) const BY_SCHEMA_WORDS: &str = "client,day";

described! {
    struct BilledUsage as "Usage" {
        /// The first day.
        from: String,
        /// The last day, included.
        to: String,
        /// The time zone of the days.
        zone: String,
        /// What a row is for, in the order of the rows.
        by: Vec<String>,
        /// The quantities that the ledger adds up. The others are 0.
        counts: Vec<String>,
        rows: Vec<BilledRow>,
        total: BilledAmounts,
    }

    struct BilledRow as "UsageRow" {
        /// Null unless rows are by day.
        day: Option<String>,
        /// Null unless rows are by month.
        month: Option<String>,
        /// The name of the client; `unknown` or `other` as `kind` says. Null unless rows are by
        /// client.
        client: Option<String>,
        /// `unknown` is the usage without a known identity, `other` that of the clients beyond
        /// `max_clients`.
        kind: Option<String> = words(&["client", "unknown", "other"]),
        requests: i64,
        tokens: i64,
        /// Millionths of the currency of `[prices]`.
        money: i64,
    }

    struct BilledAmounts as "UsageAmounts" {
        requests: i64,
        tokens: i64,
        /// Millionths of the currency of `[prices]`.
        money: i64,
    }
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageColumn {
    Client,
    Day,
    Month,
}

impl UsageColumn {
    const ALL: [UsageColumn; 3] = [UsageColumn::Client, UsageColumn::Day, UsageColumn::Month];

    pub(crate) fn word(self) -> &'static str {
        match self {
            UsageColumn::Client => "client",
            UsageColumn::Day => "day",
            UsageColumn::Month => "month",
        }
    }

    fn parse(word: &str) -> Option<UsageColumn> {
        let mut all = UsageColumn::ALL.into_iter();
        all.find(|column| column.word() == word.trim())
    }
}

/// A question as it was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageTexts<'t> {
    pub(crate) from: Option<&'t str>,
    pub(crate) to: Option<&'t str>,
    pub(crate) by: Option<&'t str>,
}

/// A question to the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageQuery {
    from: Date,
    to: Date,
    pub(crate) by: Vec<UsageColumn>,
    /// Rows of the answer, at most.
    max_rows: usize,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum UsageFailure {
    TooManyRows(usize),
    Store(StoreError),
}

impl std::fmt::Display for UsageFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UsageFailure::TooManyRows(most) => {
                write!(f, "there are more than {most} rows: ask for fewer days")
            }
            UsageFailure::Store(error) => error.fmt(f),
        }
    }
}

impl UsageQuery {
    /// Reads a question. `now_us` is in microseconds since the Unix epoch. The range is this month
    /// if the question has none.
    pub(crate) fn read(
        texts: UsageTexts<'_>,
        settings: &LedgerSettings,
        now_us: u64,
    ) -> Result<UsageQuery, String> {
        let today = settings.date_at(now_us);
        let to = texts.to.map(|text| date("to", text)).transpose()?;
        let to = to.unwrap_or(today);
        let from = texts.from.map(|text| date("from", text)).transpose()?;
        let from = from.unwrap_or(to.first_of_month());
        if from > to {
            return Err("`from` is after `to`".to_owned());
        }
        if (to - from).get_days() >= MAX_DAYS {
            return Err(format!("a range has at most {MAX_DAYS} days"));
        }
        let mut by = Vec::new();
        for word in texts.by.unwrap_or(BY_SCHEMA_WORDS).split(',') {
            match UsageColumn::parse(word) {
                Some(column) if !by.contains(&column) => by.push(column),
                _ => {
                    let word = word.trim();
                    return Err(format!(
                        "`by` has `{word}`; write `client`, `day` or `month`, or two of them with \
                         a comma"
                    ));
                }
            }
        }
        if by.contains(&UsageColumn::Day) && by.contains(&UsageColumn::Month) {
            return Err("rows are by `day` or by `month`, not by both".to_owned());
        }
        Ok(UsageQuery {
            from,
            to,
            by,
            max_rows: MAX_ROWS,
        })
    }

    /// The same question with more rows in its answer.
    pub(crate) fn with_rows(self, max_rows: usize) -> UsageQuery {
        UsageQuery { max_rows, ..self }
    }

    fn period(&self) -> LedgerPeriod {
        if self.by.contains(&UsageColumn::Day) {
            LedgerPeriod::Day
        } else if self.by.contains(&UsageColumn::Month) {
            LedgerPeriod::Month
        } else {
            LedgerPeriod::Whole
        }
    }

    /// Answers from the lines of each day.
    pub(crate) fn answer(
        &self,
        settings: &LedgerSettings,
        mut read: impl FnMut(Date) -> Result<DayLines, StoreError>,
    ) -> Result<BilledUsage, UsageFailure> {
        let by_client = self.by.contains(&UsageColumn::Client);
        let mut groups = LedgerGroups::new(self.period(), by_client, self.max_rows);
        for date in days_of(self.from, self.to) {
            let lines = read(date).map_err(UsageFailure::Store)?;
            for (client, amounts) in lines {
                let added = groups.add(date, &client, amounts);
                added.map_err(|_| UsageFailure::TooManyRows(self.max_rows))?;
            }
        }
        let total = groups.total();
        let mut rows = groups.into_rows();
        if self.by.first() == Some(&UsageColumn::Client) {
            // The rows of one client stay in the order of their days.
            rows.sort_by(|one, next| one.client.cmp(&next.client));
        }
        let texts = |columns: &[UsageColumn]| -> Vec<String> {
            columns
                .iter()
                .map(|column| column.word().to_owned())
                .collect()
        };
        Ok(BilledUsage {
            from: self.from.to_string(),
            to: self.to.to_string(),
            zone: settings.zone.name.to_string(),
            by: texts(&self.by),
            counts: settings
                .counts
                .iter()
                .map(|count| count.word().to_owned())
                .collect(),
            rows: rows.into_iter().map(|row| self.row(row)).collect(),
            total: BilledAmounts {
                requests: total.requests,
                tokens: total.tokens,
                money: total.money,
            },
        })
    }

    fn row(&self, row: LedgerRow) -> BilledRow {
        let period = self.period();
        let of = |wanted: LedgerPeriod| row.period.clone().filter(|_| period == wanted);
        BilledRow {
            day: of(LedgerPeriod::Day),
            month: of(LedgerPeriod::Month),
            client: row.client.as_ref().map(|client| client.text().to_owned()),
            kind: row.client.as_ref().map(|client| client.kind().to_owned()),
            requests: row.amounts.amount(LedgerCount::Requests),
            tokens: row.amounts.amount(LedgerCount::Tokens),
            money: row.amounts.amount(LedgerCount::Money),
        }
    }
}

/// Reads `2026-11-26`.
fn date(name: &str, text: &str) -> Result<Date, String> {
    let wrong = || format!("`{name}` is no day; write for example `2026-11-26`");
    let is_plain = text.len() == 10 && text.is_ascii();
    text.parse().ok().filter(|_| is_plain).ok_or_else(wrong)
}

/// Where the lines are.
struct LedgerPlace {
    /// Set if they are in this process.
    here: Option<Arc<BillingShared>>,
    store: StoreSettings,
    settings: Arc<LedgerSettings>,
}

impl LedgerPlace {
    fn from_snapshot(snapshot: &Snapshot<'_>) -> Option<LedgerPlace> {
        let settings = snapshot.config.ledger.as_ref()?;
        let store = &snapshot.config.store;
        let is_here = store.kind == StoreKind::Memory;
        Some(LedgerPlace {
            here: is_here.then(|| Arc::clone(snapshot.billing)),
            store: store.clone(),
            settings: Arc::clone(settings),
        })
    }

    fn answer(&self, query: &UsageQuery) -> Result<BilledUsage, ApiError> {
        let answer = match (&self.here, &self.store.kind) {
            (None, StoreKind::Redis(server)) => {
                let reader = LedgerReader::new(&self.store, server);
                let mut reader = reader.map_err(UsageFailure::Store)?;
                let answer = query.answer(&self.settings, |date| reader.read(date));
                match reader.missing().first() {
                    // A program would take a part of the sums for all of them.
                    Some(missing) => Err(UsageFailure::Store(missing.error)),
                    None => answer,
                }
            }
            (here, _) => query.answer(&self.settings, |date| {
                Ok(here.as_ref().map(|here| here.day(date)).unwrap_or_default())
            }),
        };
        Ok(answer?)
    }
}

impl From<UsageFailure> for ApiError {
    fn from(failure: UsageFailure) -> ApiError {
        let text = failure.to_string();
        match failure {
            UsageFailure::TooManyRows(_) => ApiError::bad_request(text),
            UsageFailure::Store(_) => ApiError::unavailable(text),
        }
    }
}

/// Answers `GET /api/v1/usage`: one row for each client and period.
pub(super) async fn usage(request: ApiRequest) -> Result<BilledUsage, ApiError> {
    let place = request.state.inspect(LedgerPlace::from_snapshot)?;
    let place = place.ok_or_else(|| ApiError::not_found("the configuration has no `[ledger]`"))?;
    let parameter = |name: &str| request.parameter(name).filter(|text| !text.is_empty());
    let (from, to, by) = (parameter("from"), parameter("to"), parameter("by"));
    let texts = UsageTexts {
        from: from.as_deref(),
        to: to.as_deref(),
        by: by.as_deref(),
    };
    let query = UsageQuery::read(texts, &place.settings, clock::unix_us());
    let query = query.map_err(ApiError::bad_request)?;
    let state = &request.state;
    let work = move || place.answer(&query);
    state.run_blocking("it could not be read", work).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{LedgerAmounts, LedgerClient};
    use crate::limit::calendar::Zone;

    /// 2026-11-26 22:30 UTC.
    const NOW_US: u64 = 1_795_732_200_000_000;

    fn read(from: &str, to: &str, by: &str) -> Result<UsageQuery, String> {
        let given = |text| Some(text).filter(|text: &&str| !text.is_empty());
        let texts = UsageTexts {
            from: given(from),
            to: given(to),
            by: given(by),
        };
        let zone = Zone::of_offset("+02:00").unwrap();
        UsageQuery::read(texts, &LedgerSettings::of_zone(zone), NOW_US)
    }

    #[test]
    fn a_question_is_for_this_month_in_the_zone() {
        let query = read("", "", "").unwrap();
        let range = (query.from.to_string(), query.to.to_string());
        assert_eq!(range, ("2026-11-01".to_owned(), "2026-11-27".to_owned()));
        assert_eq!(query.by, [UsageColumn::Client, UsageColumn::Day]);
        let query = read("", "2026-10-05", "month, client").unwrap();
        assert_eq!(query.from.to_string(), "2026-10-01");
        for (from, to, by, why) in [
            ("2026-11-31", "", "", "`from` is no day"),
            ("2026-11-01T00:00:00", "", "", "`from` is no day"),
            ("", "today", "", "`to` is no day"),
            ("2026-11-27", "2026-11-26", "", "after"),
            ("2000-01-01", "2026-11-26", "", "at most 4000 days"),
            ("", "", "client,client", "`by` has `client`"),
            ("", "", "limit", "`by` has `limit`"),
            ("", "", "day,month", "not by both"),
        ] {
            let error = read(from, to, by).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn an_answer_has_its_rows_in_the_order_of_the_question() {
        let lines = |date: Date| {
            let amounts = LedgerAmounts {
                requests: i64::from(date.day()),
                tokens: 10,
                money: 1_250,
            };
            let clients = [
                LedgerClient::named("b"),
                LedgerClient::named("a"),
                LedgerClient::Unknown,
            ];
            Ok(clients
                .map(|client| (client, amounts))
                .into_iter()
                .collect())
        };
        let answer = |by: &str| {
            let query = read("2026-11-25", "2026-11-26", by).unwrap();
            let settings = LedgerSettings::of_zone(Zone::utc());
            query.answer(&settings, lines).unwrap()
        };
        let rows = |by: &str| -> Vec<String> {
            let text = |row: &BilledRow| {
                let period = row.day.clone().or(row.month.clone()).unwrap_or_default();
                let client = row.client.as_deref().unwrap_or("-");
                format!("{client} {period} {}", row.requests)
            };
            answer(by).rows.iter().map(text).collect()
        };
        assert_eq!(
            rows("client,day")[..3],
            ["a 2026-11-25 25", "a 2026-11-26 26", "b 2026-11-25 25"]
        );
        assert_eq!(
            rows("day,client")[..2],
            ["a 2026-11-25 25", "b 2026-11-25 25"]
        );
        assert_eq!(
            rows("month,client"),
            ["a 2026-11 51", "b 2026-11 51", "unknown 2026-11 51"]
        );
        assert_eq!(rows("day"), ["- 2026-11-25 75", "- 2026-11-26 78"]);
        let total = answer("client").total;
        assert_eq!(
            (total.requests, total.tokens, total.money),
            (153, 60, 7_500)
        );
        let query = read("2026-11-25", "2026-11-26", "client,day").unwrap();
        let few = query
            .with_rows(5)
            .answer(&LedgerSettings::of_zone(Zone::utc()), lines);
        assert!(matches!(few, Err(UsageFailure::TooManyRows(5))));
    }
}
