//! Settings of Kong's plugins.

use super::import_text;
use crate::SourceProgram;

#[test]
fn the_size_of_a_body_has_its_unit() {
    for (unit, size) in [
        ("", "10MiB"),
        (", size_unit: megabytes", "10MiB"),
        (", size_unit: kilobytes", "10KiB"),
        (", size_unit: bytes", "10B"),
    ] {
        let imported = import_text(
            SourceProgram::Kong,
            &format!(
                "_format_version: \"3.0\"\nservices:\n- name: api\n  url: http://10.0.0.1\n  \
                 routes:\n  - {{name: r, paths: [/v1/], plugins: [{{name: request-size-limiting, \
                 config: {{allowed_payload_size: 10{unit}}}}}]}}\n"
            ),
        );
        let limit = format!("body_limit = \"{size}\"");
        let text = imported.text.replace("  ", " ").replace("  ", " ");
        assert!(text.contains(&limit), "{unit} {}", imported.text);
    }
}
