//! Certificates and what is asked of clients.

use super::File;
use super::tree::Item;
use crate::files;
use crate::print::text;

/// Reads `tls` and `certificatesResolvers`.
pub(super) fn read(root: &Item, file: &mut File<'_>) {
    let empty = Item::default();
    let tls = root.get("tls").unwrap_or(&empty);
    file.others(tls, "tls.", &["certificates", "stores", "options"]);
    // The default one is for names that no other has: ours is the first.
    if let Some(one) = tls.at("stores.default.defaultCertificate") {
        pair(one, file);
    }
    for one in tls.get("certificates").map(Item::list).unwrap_or_default() {
        pair(one, file);
    }
    for (name, options) in tls.get("options").map(Item::entries).unwrap_or_default() {
        if name != "default" {
            let why = "there is one set of options for all";
            file.lost(options, &format!("tls.options.{name}"), why);
            continue;
        }
        let known = [
            "minVersion",
            "clientAuth",
            "cipherSuites",
            "sniStrict",
            "curvePreferences",
        ];
        file.others(options, "tls.options.default.", &known);
        if options.text_at("minVersion") == Some("VersionTLS13") {
            set(file, "min_version", text("1.3"));
        }
        client_auth(options, file);
    }
    for (name, item) in root
        .get("certificatesResolvers")
        .map(Item::entries)
        .unwrap_or_default()
    {
        let why = "[tls.acme] gets certificates, once you agree to the authority's terms there";
        file.lost(item, &format!("certificatesResolvers.{name}"), why);
    }
}

fn pair(one: &Item, file: &mut File<'_>) {
    let (Some(cert), Some(key)) = (one.text_at("certFile"), one.text_at("keyFile")) else {
        file.lost(one, "certificate", "certFile and keyFile are needed");
        return;
    };
    let place = file.place(one);
    let pair = (cert.to_owned(), key.to_owned(), place);
    file.draft.tls.certificates.push(pair);
}

fn client_auth(options: &Item, file: &mut File<'_>) {
    let Some(auth) = options.get("clientAuth") else {
        return;
    };
    let word = match auth.text_at("clientAuthType") {
        Some("RequireAndVerifyClientCert") => "required",
        Some("VerifyClientCertIfGiven") => "optional",
        _ => {
            file.lost(
                auth,
                "clientAuth",
                "certificates of clients are verified, or not asked for",
            );
            return;
        }
    };
    match &auth.texts_at("caFiles")[..] {
        [ca] if files::is_there(ca) => {
            set(file, "client_ca", text(ca));
            set(file, "client_auth", text(word));
        }
        _ => file.lost(
            auth,
            "clientAuth",
            "`client_ca` of [tls] is one file that can be read here",
        ),
    }
}

pub(super) fn set(file: &mut File<'_>, key: &str, value: String) {
    let settings = &mut file.draft.tls.settings;
    if !settings.iter().any(|(known, _)| known == key) {
        settings.push((key.to_owned(), value));
    }
}
