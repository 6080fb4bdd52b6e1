//! Budgets of tokens: what files say about them, and what is said of files that are wrong.

use std::time::Duration;

use super::super::{Config, MAX_BODY_READ};
use super::{accept, check, codes, fine, refuse};
use crate::limit::key::{ListedValues, Part};
use crate::route::{CostSource, Route, Settle};
use crate::usage::format::AnswerFormat;
use crate::usage::request::BodyMember;
use crate::usage::settings::{AbortedUsage, MissingUsage, Quantity, TokenWeights, UsageSettings};
use crate::usage::tokens::TokenCounts;

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";
const CALLS: &str = "[limit.calls]\nconcurrent = 20\n";

/// A file with a limit that counts this, and a route with this besides.
fn file(counts: &str, route: &str) -> String {
    format!(
        "{BASE}[prices]\n\"*\" = {{ input = 5, output = 20 }}\n{CALLS}[limit.a]\n\
         rate = \"200_000/min\"\ncounts = \"{counts}\"\n\
         [[route]]\npath = \"/v1/*\"\nlimits = [\"a\", \"calls\"]\n{route}\n"
    )
}

/// The same with a usage of this.
fn usage(settings: &str) -> String {
    let route = "usage = \"chat\"\nrefund = [\"4xx\", \"5xx\"]";
    format!("{}[usage.chat]\n{settings}\n", file("tokens", route))
}

fn first(config: &Config) -> &Route {
    config.routes.iter().next().unwrap()
}

#[track_caller]
fn settings(text: &str) -> UsageSettings {
    let config = fine(&usage(text));
    let settings = first(&config).usage.as_deref();
    settings.unwrap().clone()
}

#[test]
fn a_format_alone_has_the_defaults() {
    let config = fine(&file("tokens", "usage = \"anthropic\"\nrefund = \"5xx\""));
    let usage = first(&config).usage.as_deref().unwrap();
    assert_eq!(&*usage.name, "anthropic");
    assert_eq!(usage.format, Some(AnswerFormat::Anthropic));
    assert_eq!((usage.bytes_per_token, usage.default_output), (3, 1024));
    assert_eq!(usage.weights, TokenWeights::default());
    assert!(!usage.asks);
    assert_eq!(usage.missing, MissingUsage::Estimate);
    assert_eq!(usage.abort, AbortedUsage::Estimate);
    assert_eq!(usage.prices.rows.len(), 1);
    assert_eq!(first(&config).body_read, 64 << 10);
    assert_eq!(config.server.body_memory, 64 << 20);
}

#[test]
fn usage_is_read() {
    let usage = settings(
        "format = \"openai\"\nbytes_per_token = 4\ndefault_output = 256\nask = true\n\
         weights = { cached = 0.1, cache_write = 1.25, output = 4 }\nmissing = \"observed\"\n\
         abort = \"drain\"\ndrain = \"5s\"",
    );
    assert_eq!((usage.bytes_per_token, usage.default_output), (4, 256));
    assert!(usage.asks);
    let weights = TokenWeights {
        input: 1_000_000,
        cached: 100_000,
        cache_write: 1_250_000,
        output: 4_000_000,
    };
    assert_eq!(usage.weights, weights);
    assert_eq!(usage.missing, MissingUsage::Observed);
    let drain = AbortedUsage::Drain(Duration::from_secs(5));
    assert_eq!(usage.abort, drain);
    let usage = settings("format = \"gemini\"\nabort = \"drain\"\nmissing = \"prompt\"");
    let drain = AbortedUsage::Drain(Duration::from_secs(60));
    assert_eq!(usage.abort, drain);
    assert_eq!(usage.missing, MissingUsage::Prompt);
}

#[test]
fn any_json_has_paths() {
    let any = settings(
        "format = \"json\"\ninput = \"stats.in\"\noutput = \"stats.out\"\nmodel = \"model\"\n\
         text = \"message\"\nabort = \"observed\"",
    );
    assert_eq!(any.format, None);
    assert_eq!(any.abort, AbortedUsage::Observed);
    settings("format = \"json\"\ntotal = \"stats.all\"");
    settings("format = \"json\"\ninput = \"stats.in\"");
    let found = |text: &str| codes(&usage(&format!("format = \"json\"\n{text}")));
    assert_eq!(found(""), ["T104"]);
    assert_eq!(found("total = \"a\"\ninput = \"b\""), ["T124"]);
    assert_eq!(found("total = \"a..b\""), ["T111"]);
    assert_eq!(found("total = \"a\"\nabort = \"observed\""), ["T124"]);
    assert_eq!(found("total = \"a\"\nask = true"), ["T124"]);
}

#[test]
fn settings_of_usage_are_checked() {
    for (text, code) in [
        ("", "T104"),
        ("format = \"opneai\"", "T106"),
        ("format = \"openai\"\nbytes_per_token = 0", "T105"),
        ("format = \"openai\"\nbytes_per_token = 65", "T105"),
        ("format = \"openai\"\nmissing = \"drop\"", "T106"),
        ("format = \"openai\"\ndrain = \"5s\"", "T124"),
        (
            "format = \"openai\"\nabort = \"drain\"\ndrain = \"5h\"",
            "T105",
        ),
        ("format = \"openai\"\ninput = \"a\"", "T124"),
        ("format = \"anthropic\"\nask = true", "T124"),
        ("format = \"openai\"\nweights = { input = -1 }", "T105"),
        (
            "format = \"openai\"\nweights = { input = 0.0000001 }",
            "T105",
        ),
        ("format = \"openai\"\nweights = { input = \"1\" }", "T103"),
        ("format = \"openai\"\nweights = { inputs = 1 }", "T101"),
        ("format = \"openai\"\nbytes = 1", "T101"),
    ] {
        assert_eq!(codes(&usage(text)), [code], "{text}");
    }
}

#[test]
fn prices_keep_their_order() {
    let prices = "[prices]\n\"gpt-5-mini\" = { input = 0.25, output = 2 }\n\
                  \"gpt-5*\" = { input = 1.25, cached = 0.125, output = 10 }\n\
                  \"*\" = { input = 5, cache_write = 6, output = 20 }\n";
    let text = file("money", "usage = \"openai\"\nrefund = \"5xx\"");
    let text = text.replace("[prices]\n\"*\" = { input = 5, output = 20 }\n", prices);
    let config = fine(&text);
    let usage = first(&config).usage.as_deref().unwrap();
    let tokens = TokenCounts {
        input: 3_000,
        cached: 1_000,
        cache_write: 1_000,
        output: 100,
    };
    let money = |model| usage.units(Quantity::Money, tokens, model);
    assert_eq!(money("gpt-5-mini"), Some(950));
    assert_eq!(money("gpt-5-2025"), Some(1_250 + 125 + 1_250 + 1_000));
    assert_eq!(money("other"), Some(5_000 + 5_000 + 6_000 + 2_000));
    let found = |row: &str| codes(&text.replace(prices, &format!("{prices}{row}\n")));
    assert_eq!(found("\"gpt-6\" = { input = 1, output = 1 }"), ["T124"]);
    let only = |row: &str| codes(&text.replace(prices, &format!("[prices]\n{row}\n")));
    assert_eq!(only("\"a\" = { input = 1 }"), ["T104"]);
    assert_eq!(only("\"a\" = 5"), ["T103"]);
    assert_eq!(
        only("\"a\" = { input = 1, output = 1, outputs = 1 }"),
        ["T101"]
    );
    assert_eq!(only("\"x-ai/grok\" = { input = 1, output = 1 }"), [""; 0]);
    assert_eq!(codes(&text.replace(prices, "")), ["T124"]);
}

#[test]
fn each_quantity_is_counted() {
    for (word, counts, reads_usage) in [
        ("costs", Quantity::Costs, true),
        ("tokens", Quantity::Tokens, true),
        ("input", Quantity::Input, false),
        ("output", Quantity::Output, true),
        ("money", Quantity::Money, true),
        ("requests", Quantity::Requests, false),
    ] {
        let route = match word {
            "requests" => "usage = \"openai\"",
            _ => "usage = \"openai\"\nrefund = \"5xx\"",
        };
        let config = fine(&file(word, route));
        let limit = &config
            .limits
            .iter()
            .find(|limit| &*limit.name == "a")
            .unwrap();
        assert_eq!(limit.counts, counts);
        assert_eq!(limit.each, counts == Quantity::Requests);
        assert!(limit.refunds, "{word}");
        let table = first(&config).reads_body.as_deref();
        assert_eq!(
            table.is_some_and(|table| table.reads_usage),
            reads_usage,
            "{word}"
        );
    }
    let asks = usage("format = \"openai\"\nask = true").replace("\"tokens\"", "\"input\"");
    let config = fine(&asks);
    assert!(first(&config).reads_body.as_deref().unwrap().reads_usage);
    let config = fine(&file("requests", ""));
    assert!(first(&config).reads_body.is_none());
}

/// It bills the model and the maximum that a request names, if the answer says nothing.
#[test]
fn a_ledger_needs_the_model_of_each_call() {
    for (counts, reads) in [("[\"requests\"]", false), ("[\"money\"]", true)] {
        let (config, _) = accept(&format!(
            "{}[ledger]\ncounts = {counts}\n",
            file("requests", "usage = \"openai\"")
        ));
        let table = first(&config).reads_body.as_deref();
        assert_eq!(table.is_some_and(|table| table.reads_usage), reads);
    }
}

#[test]
fn a_route_reads_the_members_of_its_keys_and_its_cost() {
    let config = accept(&format!(
        "{BASE}[limit.a]\nrate = \"9/s\"\nkey = [\"mcp:tool or graphql:operation\", \"body:a.b\"]\n\
         values = {{ \"mcp:tool\" = \"search\", \"graphql:operation\" = [\"q\"], \
         \"body:a.b\" = [\"1\"] }}\n\
         [limit.b]\nrate = \"1/s\"\nkey = [\"ip\", \"mcp:tool\"]\n\
         values = {{ \"mcp:tool\" = \"search\" }}\n\
         [[route]]\npath = \"/v1/*\"\nlimits = [\"a\", \"b\"]\ncost = \"body:size\"\n\
         body_read = \"1MiB\"\n[[route]]\npath = \"/\"\nlimits = [\"1/s\"]\n"
    ))
    .0;
    let mut routes = config.routes.iter();
    let (route, other) = (routes.next().unwrap(), routes.next().unwrap());
    let table = route.reads_body.as_deref().unwrap();
    let member = |text| match Part::parse(text) {
        Ok(Part::Body(member)) => member,
        other => panic!("{other:?}"),
    };
    let members = ["mcp:tool", "graphql:operation", "body:a.b", "body:size"].map(member);
    assert_eq!(table.members, members);
    assert!(!table.reads_usage);
    assert_eq!(route.body_read, MAX_BODY_READ);
    let [.., BodyMember::Path(size)] = members else {
        panic!()
    };
    assert_eq!(route.cost, CostSource::Body(size));
    assert!(other.reads_body.is_none());
    let copy = config.fresh_copy();
    assert_eq!(
        first(&copy).reads_body.as_deref().unwrap().members,
        table.members
    );
}

#[test]
fn listed_values_are_checked() {
    let text = |key: &str, values: &str| {
        format!("{BASE}[limit.default]\nrate = \"9/s\"\nkey = {key}\nvalues = {{ {values} }}\n")
    };
    let config = fine(&text(
        "\"mcp:tool\"",
        "\"mcp:tool\" = [\"search\", \"fetch\"]",
    ));
    let part = Part::parse("mcp:tool").unwrap();
    let listed = ListedValues::new(part, ["search", "fetch"]);
    assert_eq!(config.limits[0].key.listed, [listed]);
    fine(&text(
        "\"header:x-plan\"",
        "\"header:x-plan\" = [\"free\"], \"x-note\" = \"a\"",
    ));
    fine(&text(
        "[\"ip\", \"method\"]",
        "ip = \"10.0.0.1\", method = \"get\"",
    ));
    for (values, code) in [
        ("\"mcp:method\" = \"search\"", "T124"),
        ("\"mcp:tol\" = \"search\"", "T111"),
        ("\"mcp:tool\" = []", "T105"),
        ("\"mcp:tool\" = \"\"", "T111"),
        ("\"mcp:tool\" = [\"a\", \"a\"]", "T119"),
        ("\"mcp:tool\" = [\"other\"]", "T124"),
        ("\"mcp:tool\" = 5", "T103"),
    ] {
        let found = codes(&text("\"mcp:tool\"", values));
        assert_eq!(found.first(), Some(&code), "{values}: {found:?}");
    }
    assert_eq!(codes(&text("\"ip\"", "ip = \"office\"")), ["T111"]);
    assert_eq!(codes(&text("\"global\"", "global = \"a\"")), ["T111"]);
}

#[test]
fn the_upstream_settles_in_three_ways() {
    let settle = |text: &str| {
        let text =
            format!("{BASE}[[route]]\npath = \"/\"\nlimits = [\"1/s\"]\nsettle = \"{text}\"\n");
        first(&fine(&text)).settle.clone().unwrap()
    };
    assert!(matches!(settle("response-header:x-cost"), Settle::Header(name) if name == "x-cost"));
    assert!(matches!(settle("response-trailer:x-cost"), Settle::Trailer(name) if name == "x-cost"));
    let json = settle("response-json:usage.cost");
    assert!(matches!(json, Settle::Json(path) if path.as_str() == "usage.cost"));
    for wrong in [
        "x-cost",
        "response-body:a",
        "response-json:a..b",
        "response-trailer:a b",
    ] {
        let text =
            format!("{BASE}[[route]]\npath = \"/\"\nlimits = [\"1/s\"]\nsettle = \"{wrong}\"\n");
        assert_eq!(codes(&text), ["T111"], "{wrong}");
    }
}

#[test]
fn a_limit_of_tokens_needs_usage() {
    check(
        &file("tokens", ""),
        r#"error[T128]: `limit.a` counts what a route without `usage` does not know
  --> proxy.toml:8:10
   |
 8 | counts = "tokens"
   |          ^^^^^^^^ needs the usage of each answer
...
11 | limits = ["a", "calls"]
   |           --- this route has no `usage`
help: write `usage = "openai"` in the route, or another format
"#,
    );
    assert_eq!(codes(&file("tokens", "cost = 0")), [""; 0], "a look");
    let default = format!("{BASE}[limit.default]\nrate = \"9/s\"\ncounts = \"input\"\n");
    assert_eq!(codes(&default), ["T128"]);
    let concurrent = format!("{BASE}[limit.default]\nconcurrent = 9\ncounts = \"tokens\"\n");
    assert!(codes(&concurrent).contains(&"T124"));
}

#[test]
fn usage_is_the_only_cost() {
    for setting in [
        "cost = 2",
        "cost = 0",
        "cost = \"header:x-cost\"",
        "settle = \"response-header:x-cost\"",
    ] {
        let route = format!("usage = \"openai\"\nrefund = \"5xx\"\n{setting}");
        assert_eq!(codes(&file("tokens", &route)), ["T124"], "{setting}");
    }
    let default = "usage = \"openai\"\nrefund = \"5xx\"\ncost = 1";
    assert_eq!(codes(&file("tokens", default)), [""; 0]);
    let answers = "usage = \"openai\"\nrefund = \"5xx\"\nrespond = { status = 404 }";
    assert_eq!(codes(&file("tokens", answers)), ["T124"]);
}

#[test]
fn an_unknown_usage_has_a_suggestion() {
    let help = |name: &str| {
        let route = format!("usage = \"{name}\"\nrefund = \"5xx\"");
        let text = format!(
            "{}[usage.chat]\nformat = \"openai\"\n",
            file("tokens", &route)
        );
        let found = refuse(&text);
        assert_eq!(found.list[0].code.as_str(), "T127");
        found.list[0].help.clone().unwrap()
    };
    assert_eq!(help("antropic"), "did you mean `anthropic`?");
    assert_eq!(help("chatt"), "did you mean `chat`?");
    assert!(help("json").contains("[usage.json]"));
    assert!(help("something").contains("[usage.something]"));
}

#[test]
fn a_rate_holds_one_token_at_least() {
    let text = usage("format = \"openai\"\nweights = { input = 300_000 }");
    assert_eq!(codes(&text.replace("\"tokens\"", "\"costs\"")), ["T121"]);
    let money = file("money", "usage = \"openai\"\nrefund = \"5xx\"");
    let money = money.replace("input = 5", "input = 300_000");
    assert_eq!(codes(&money), ["T121"]);
}

#[test]
fn members_that_clients_invent_are_no_guard() {
    let text = |limits: &str| {
        format!(
            "{BASE}[limit.tool]\nrate = \"9/s\"\nkey = [\"ip\", \"mcp:tool\"]\n\
             [limit.ip]\nrate = \"99/s\"\n[limit.user]\nrate = \"8/s\"\nkey = \"header:x-user\"\n\
             [[route]]\npath = \"/all\"\nlimits = [\"user\", \"ip\"]\n\
             [[route]]\npath = \"/mcp\"\nlimits = [{limits}]\n"
        )
    };
    let tool = "[limit.tool]\nrate = \"9/s\"\nkey = [\"ip\", \"mcp:tool\"]\n";
    let route = "[[route]]\npath = \"/mcp\"\nlimits = [\"tool\"]\n";
    check(
        &format!("{BASE}{tool}{route}"),
        r#"error[T129]: route `/mcp` has only limits by keys that clients can invent
 --> proxy.toml:4:7
  |
4 | key = ["ip", "mcp:tool"]
  |       ^^^^^^^^^^^^^^^^^^ each new `mcp:tool` has a budget of its own
help: name the values: `values = { "mcp:tool" = [".."] }`, or add a limit by `ip` to the route
"#,
    );
    assert_eq!(codes(&text("\"tool\", \"user\"")), ["T129"]);
    assert_eq!(codes(&text("\"tool\", \"ip\"")), ["T226"]);
    let listed = "key = [\"ip\", \"mcp:tool\"]\nvalues = { \"mcp:tool\" = [\"search\"] }";
    let listed = |limits| text(limits).replace("key = [\"ip\", \"mcp:tool\"]", listed);
    assert_eq!(codes(&listed("\"tool\"")), [""; 0]);
    assert_eq!(codes(&listed("\"tool\", \"ip\"")), [""; 0]);
    let model = listed("\"tool\"").replace("\"mcp:tool\"]\n", "\"mcp:tool\", \"body:model\"]\n");
    assert_eq!(codes(&model), ["T129"], "each part is listed by itself");
}

#[test]
fn bodies_are_read_for_limits_of_the_proxy_alone() {
    let balance = "[upstream.a]\nservers = \"http://10.0.0.1\"\nbalance = \"hash:body:user\"\n\
                   [[route]]\npath = \"/\"\nupstream = \"a\"\n";
    assert_eq!(codes(balance), ["T124"]);
    let tier = format!("{BASE}[tier]\nfrom = \"body:plan\"\n");
    assert_eq!(codes(&tier), ["T111"]);
}

#[test]
fn doubts_about_usage_are_told() {
    let none = file("tokens", "usage = \"openai\"");
    assert_eq!(codes(&none), ["T221"]);
    let alone = file("tokens", "usage = \"openai\"\nrefund = \"5xx\"");
    let alone = alone
        .replace("[\"a\", \"calls\"]", "[\"a\"]")
        .replace(CALLS, "");
    assert_eq!(codes(&alone), ["T225"]);
    let requests = alone.replace("[\"a\"]", "[\"a\", \"b\"]");
    let requests = format!("{requests}[limit.b]\nrate = \"5/s\"\ncounts = \"requests\"\n");
    assert_eq!(codes(&requests), [""; 0]);
    let observed = |bytes: u64| {
        let settings =
            format!("format = \"openai\"\nabort = \"observed\"\nbytes_per_token = {bytes}");
        codes(&usage(&settings))
    };
    assert_eq!(observed(4), [""; 0]);
    assert_eq!(observed(5), ["T222"]);
    let output = |tokens: u64| {
        codes(&usage(&format!(
            "format = \"openai\"\ndefault_output = {tokens}"
        )))
    };
    assert_eq!(output(100_000), [""; 0]);
    assert_eq!(output(100_001), ["T223"]);
    let weighted = usage("format = \"openai\"\nweights = { output = 100 }");
    assert_eq!(codes(&weighted), [""; 0], "tokens have no weights");
    let weighted = weighted.replace("counts = \"tokens\"", "counts = \"costs\"");
    assert_eq!(codes(&weighted), ["T223"]);
    let chosen = format!("{BASE}[[route]]\npath = \"/\"\nlimits = [\"9/s\"]\ncost = \"body:n\"\n");
    assert_eq!(codes(&chosen), ["T224"]);
}
