//! Random files: each is imported or refused, and `check` takes what is imported.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{file, import_text};

/// Parts of files, good and bad ones.
const WORDS: [&str; 48] = [
    "domain: d\n",
    "domain: '${HOME} $$'\n",
    "descriptors:\n",
    "- key: a\n",
    "- key: a\n",
    "- key: b\n",
    "- key: 'a=b'\n",
    "- key: \"a \\t\\u0007\\\"\"\n",
    "- key: 'b*'\n",
    "- {key: c, value: '${X}*', rate_limit: {unit: day}}\n",
    "  value: x\n",
    "  value: 'x*'\n",
    "  value: '*y'\n",
    "  value: '*'\n",
    "  value: '='\n",
    "  value: 1e3\n",
    "  value: ''\n",
    "  descriptors:\n",
    "  - key: a\n",
    "  - key: b\n",
    "  - {key: a, value: 'y*z', rate_limit: {unit: Week, requests_per_unit: 7}}\n",
    "    value: y\n",
    "    descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]\n",
    "    rate_limit: {unit: day, requests_per_unit: 4294967295}\n",
    "    rate_limit: {unlimited: true, name: n}\n",
    "  rate_limit: {unit: day, requests_per_unit: 3}\n",
    "  rate_limit: {unit: minute, requests_per_unit: 3, name: n, replaces: [{name: m}]}\n",
    "  rate_limit: {unit: year, requests_per_unit: 0, name: m, replaces: [{name: n}]}\n",
    "  rate_limit: {unlimited: yes, name: \"\\u0000\"}\n",
    "  rate_limit: {unit: none}\n",
    "  rate_limit:\n",
    "    unit: hour\n",
    "    requests_per_unit: 0x10\n",
    "    name: 'd/a=x'\n",
    "    replaces: [{name: ''}]\n",
    "  share_threshold: true\n",
    "    share_threshold: true\n",
    "  shadow_mode: true\n",
    "  quota_mode: true\n",
    "  detailed_metric: true\n",
    "  metadata: {'${X}': [1, 1.5, ~, {a.b: \"\\u0007\"}], n: 99999999999999999999}\n",
    "  metadata: {d: 2001-01-01, i: .inf, o: 010, '': {}}\n",
    "  x: y\n",
    "  <<: {key: e}\n",
    "# c\n",
    "- &x {key: f}\n- *x\n",
    "---\n",
    "\t",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// An import is no error of `check`, which `import_text` would report by a panic.
    #[test]
    fn any_file_is_imported_or_refused(words in vec(select(&WORDS[..]), 0..14)) {
        let text = words.concat();
        let whole = file(&text);
        for text in [&text, &whole] {
            if let Err(error) = import_text(text) {
                prop_assert!(error.starts_with("a.yml:"), "{}", error);
            }
        }
    }
}
