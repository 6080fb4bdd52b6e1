//! Guards of nginx beside what they became: a request that nginx turns away never reaches an
//! upstream here, and what differs otherwise stands in the table.

use std::fs;
use std::net::SocketAddr;

use super::{Nginx, run};
use crate::house::{Client, Tidegate};
use crate::support::free_port;

/// A request (`METHOD PATH | HEADER: VALUE ..`) and what nginx and tidegate answer; nginx closes
/// the connection without an answer where it is 444.
type Row = (&'static str, u16, u16);

struct Beside {
    theirs: SocketAddr,
    _nginx: Nginx,
    ours: Tidegate,
    text: String,
}

impl Beside {
    /// nginx with this in its `http`, and the proxy that it becomes.
    fn start(site: &str) -> Beside {
        let (port, ours, up) = (free_port(), free_port(), free_port());
        let http = |port: u16| {
            let site = site.replace("@UP@", &up.to_string());
            site.replace("@PORT@", &port.to_string())
        };
        let upstream = format!("server {{ listen 127.0.0.1:{up}; return 200 \"$request_uri\"; }}");
        let theirs = SocketAddr::from(([127, 0, 0, 1], port));
        let nginx = Nginx::start(&format!("{upstream}\n{}", http(port)), theirs);
        let source = tempfile::tempdir().unwrap();
        fs::write(source.path().join("site.conf"), http(ours)).unwrap();
        let output = run(source.path(), &["import", "nginx", "site.conf"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        // The tests' proxies say themselves where they listen.
        let ours =
            Tidegate::start(&text.replace(&format!("listen = [\"127.0.0.1:{ours}\"]\n"), ""));
        Beside {
            theirs,
            _nginx: nginx,
            ours,
            text,
        }
    }

    fn check(&self, rows: &[Row]) {
        let mut wrong = String::new();
        for (request, theirs, ours) in rows {
            let is = (
                asked(self.theirs, request).0,
                asked(self.ours.address, request).0,
            );
            if is != (*theirs, *ours) {
                wrong.push_str(&format!(
                    "{request}: {is:?}, expected {:?}\n",
                    (theirs, ours)
                ));
            }
            // The rule that the whole table is about.
            assert!(
                is.0 < 400 || is.1 >= 400,
                "{request} is open\n{}",
                self.text
            );
        }
        assert!(wrong.is_empty(), "{wrong}\n{}", self.text);
    }
}

/// The status and the body of an answer.
fn asked(address: SocketAddr, request: &str) -> (u16, String) {
    let mut parts = request.split(" | ");
    let line = parts.next().unwrap();
    let headers: Vec<&str> = parts.collect();
    let is_host = |header: &&str| header.starts_with("Host:");
    let mut head = format!("{line} HTTP/1.1\r\n");
    if !headers.iter().any(is_host) {
        head.push_str("Host: a.example\r\n");
    }
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    let mut client = Client::to(address);
    client.send(format!("{head}\r\n"));
    let answer = client.try_answer(line.starts_with("HEAD "));
    answer.map_or((444, String::new()), |answer| {
        (answer.status, answer.text())
    })
}

/// The routes that a list of addresses becomes, and requests from 127.0.0.1.
#[test]
fn lists_of_addresses() {
    let site = "server { listen 127.0.0.1:@PORT@; server_name a.example; deny 192.0.2.0/24;\n\
        location / { proxy_pass http://127.0.0.1:@UP@; }\n\
        location /in/ { allow 127.0.0.0/8; deny all; proxy_pass http://127.0.0.1:@UP@; }\n\
        location /out/ { allow 10.0.0.0/8; deny all; proxy_pass http://127.0.0.1:@UP@; }\n\
        location /not/ { deny 127.0.0.1; allow all; proxy_pass http://127.0.0.1:@UP@; }\n\
        location /both/ { deny 127.0.0.1; allow 127.0.0.0/8; deny all;\n\
            proxy_pass http://127.0.0.1:@UP@; }\n\
        location /hole/ { allow 127.0.0.1; deny 127.0.0.0/8; proxy_pass http://127.0.0.1:@UP@; }\n\
        location /pre { allow 10.0.0.0/8; deny all; proxy_pass http://127.0.0.1:@UP@; }\n\
        location /none/ { deny all; proxy_pass http://127.0.0.1:@UP@; }\n\
        location /said/ { deny 127.0.0.1; return 200 said; } }";
    let both = Beside::start(site);
    both.check(&[
        ("GET /", 200, 200),
        ("GET /in/", 200, 200),
        ("GET /out/", 403, 403),
        ("GET /not/", 403, 403),
        ("GET /prefix", 403, 403),
        ("GET /both/", 403, 403),
        ("GET /hole/", 200, 501),
        ("GET /none/", 403, 403),
        ("GET /said/", 200, 200),
    ]);
    for access in [
        "{ deny = \"192.0.2.0/24\" }",
        "{ allow = \"127.0.0.0/8\" }",
        "{ allow = \"127.0.0.0/8\", deny = \"127.0.0.1\" }",
    ] {
        assert!(both.text.contains(access), "{access}\n{}", both.text);
    }
}

#[test]
fn locations_conditions_and_paths() {
    let site = include_str!("../../fixtures/import/beside/locations_conditions_and_paths.conf");
    Beside::start(site).check(&[
        ("GET /", 200, 200),
        ("GET /.git/config", 404, 404),
        ("GET /x/.git", 404, 404),
        ("GET /.htaccess", 403, 403),
        ("GET /a/.htpasswd", 403, 403),
        ("GET /%2egit/x", 404, 404),
        ("GET /a.png", 200, 200),
        ("GET /A.CSS", 200, 200),
        ("GET /x.php", 403, 403),
        ("GET /static/x.php", 200, 200),
        ("GET /static/a?b=c", 200, 200),
        ("GET /ro/a", 200, 200),
        ("HEAD /ro/a", 200, 200),
        ("POST /ro/a", 403, 403),
        ("DELETE /ro/a", 403, 403),
        ("GET /basic/", 200, 200),
        ("PUT /basic/", 403, 501),
        ("GET /m", 200, 200),
        ("POST /m", 200, 200),
        ("HEAD /m", 405, 405),
        ("DELETE /m", 405, 405),
        ("GET /more", 200, 200),
        ("GET /key/", 403, 403),
        ("GET /key/ | X-Key: abc", 200, 200),
        ("GET /key/ | X-Key: abd", 403, 403),
        ("GET /some/", 401, 401),
        ("GET /some/ | X-Key: 1", 200, 200),
        ("GET /some/ | X-Key:", 401, 401),
        ("GET /ua/", 403, 403),
        ("GET /ua/ | User-Agent: curl", 200, 200),
        ("GET /ua/ | User-Agent: WGET/1", 403, 403),
        ("GET /ua/ | User-Agent:", 403, 403),
        ("GET /ref/", 200, 501),
        ("GET /ref/ | Referer: http://evil/", 403, 501),
        ("OPTIONS /cors/", 204, 204),
        ("GET /cors/", 200, 200),
        ("GET /api/x/y?z", 200, 200),
        ("GET /api/", 200, 200),
        ("GET /api", 301, 301),
        ("GET /strip/a", 200, 200),
        ("GET /one", 200, 200),
        ("GET /adm", 403, 403),
        ("GET /admin", 403, 403),
        ("GET /administrator/x", 403, 403),
        ("GET /admin/public/x", 200, 200),
        ("GET /img/thumb_1", 200, 200),
        ("GET /x", 404, 404),
        ("GET /app/a", 200, 200),
        ("GET /cookie/a", 302, 302),
        ("GET /cookie/a | Cookie: session=1", 200, 200),
        ("GET /cookie/a | Cookie: xsession=1", 302, 302),
        ("GET /cookie/a | Cookie: a=b; session=1", 200, 200),
    ]);
}

#[test]
fn servers_maps_and_hosts() {
    let site = include_str!("../../fixtures/import/beside/servers_maps_and_hosts.conf");
    Beside::start(site).check(&[
        ("GET /", 200, 200),
        ("GET / | Host: evil", 444, 444),
        ("GET / | User-Agent: Nikto", 403, 403),
        ("GET /exact | User-Agent: Nikto", 403, 403),
        ("GET / | User-Agent: EVIL", 403, 403),
        ("DELETE /", 405, 405),
        ("POST /", 200, 200),
        ("GET / | Host: www.a.example", 301, 301),
        ("GET /wp-config.php", 403, 403),
        ("GET /xmlrpc.php", 403, 403),
        ("GET /exact", 200, 200),
        ("GET / | X-Attack: union", 403, 403),
        ("GET / | X-Probe: 1", 403, 403),
        ("GET /old/x", 200, 501),
        ("GET /.git", 403, 403),
        ("GET /.well-known/a", 200, 200),
        ("GET /u/1", 200, 200),
        ("GET /u/x", 200, 200),
        ("GET / | Host: good.example", 403, 403),
        ("GET / | Host: good.example | User-Agent: curl", 200, 200),
        ("GET / | Host: geo.example", 200, 501),
        ("GET / | Host: deny.example", 403, 403),
        ("GET /public/x | Host: deny.example", 200, 200),
        ("GET / | Host: auth.example", 401, 501),
        ("GET /open/x | Host: auth.example", 200, 200),
        ("GET / | Host: x.wild.example", 200, 501),
        ("GET / | Host: z.wild.example", 403, 501),
    ]);
}

#[test]
fn what_wordpress_closes() {
    let site = include_str!("../../fixtures/import/beside/what_wordpress_closes.conf");
    Beside::start(site).check(&[
        ("GET /", 200, 200),
        ("GET /robots.txt", 200, 200),
        ("GET /.env", 403, 403),
        ("GET /wp-content/uploads/x.php", 403, 403),
        ("GET /wp-content/uploads/x.PHP", 403, 403),
        ("GET /wp-content/a/readme.txt", 403, 403),
        ("GET /a.css", 200, 200),
        ("GET /xmlrpc.php", 403, 403),
        ("PUT /wp-login.php", 403, 403),
        ("POST /wp-login.php", 200, 200),
        ("GET /wp-admin/install.php", 403, 403),
        ("GET /x/wp-config.php.bak", 403, 403),
        ("GET /uploads/a.jpg", 200, 200),
        ("GET /xmlrpc.php/", 200, 403),
    ]);
}

#[test]
fn what_nextcloud_and_security_snippets_close() {
    let site = include_str!(
        "../../fixtures/import/beside/what_nextcloud_and_security_snippets_close.conf"
    );
    Beside::start(site).check(&[
        ("GET /", 200, 200),
        ("GET / | User-Agent: DavClnt", 302, 302),
        ("GET /.well-known/carddav", 301, 301),
        ("GET /.well-known/acme-challenge/x", 200, 200),
        ("GET /.well-known/foo", 301, 301),
        ("GET /build/x", 404, 404),
        ("GET /builder", 200, 200),
        ("GET /data", 404, 404),
        ("GET /occ", 404, 404),
        ("GET /db_x", 404, 404),
        ("GET /a/.env", 403, 403),
        ("GET /x.sql", 403, 403),
        ("GET /x~", 403, 403),
        ("GET /metrics", 403, 403),
        ("GET /metricsx", 403, 403),
        ("GET /api/live/x", 200, 200),
        ("GET /static/0123abcd/x", 200, 200),
        ("GET /downloads/x", 404, 404),
        ("GET /admin", 200, 200),
        ("GET /admin/", 401, 501),
        ("GET /admin/x", 401, 501),
        ("GET /rails/x", 200, 200),
        ("GET /.gitignore", 403, 403),
        ("GET /CONFIG/x", 200, 200),
    ]);
}

#[test]
fn other_guards() {
    let site = include_str!("../../fixtures/import/beside/other_guards.conf");
    Beside::start(site).check(&[
        ("GET /mapkey/", 401, 401),
        ("GET /mapkey/ | X-Api-Key: k1", 200, 200),
        ("GET /mapkey/ | X-Api-Key: k3", 401, 401),
        ("GET /method/", 200, 200),
        ("PUT /method/", 405, 405),
        ("GET /up/x.php", 403, 403),
        ("GET /up/x", 200, 200),
        ("GET /byarg/?x=1", 200, 200),
        ("GET /byarg/?x=1&debug=1", 403, 403),
        ("GET /byarg/?debug=0&v=3", 200, 200),
        ("GET /byarg/?v=2", 418, 418),
        // Both deny it.
        ("GET /byarg/?v=2&debug=1", 403, 418),
        ("GET /q/?evil", 403, 501),
        ("GET /q/", 200, 501),
        ("GET /addr/", 403, 501),
        ("GET /secure/x", 403, 501),
        ("GET /ssl/", 403, 403),
        ("GET /inif/a.SQL", 404, 404),
        ("GET /inif/a", 200, 200),
        ("GET /guard", 403, 403),
        ("GET /openguard", 200, 200),
        ("POST /acc", 403, 403),
        ("POST /account", 403, 403),
        ("GET /teap/", 418, 418),
        ("GET /ref/", 403, 403),
        ("GET /ref/ | Referer: https://a.example/", 200, 200),
        ("GET /both/", 401, 401),
        ("GET /both/ | X-A: 1", 403, 403),
        ("GET /both/ | X-A: 1 | X-B: 1", 200, 200),
        ("GET /both/ | X-B: 1", 401, 401),
        ("GET /e", 200, 200),
        ("GET /noneed/", 200, 200),
        ("GET /p/a/x", 200, 200),
        ("GET /case/", 403, 403),
        ("DELETE /case/ | User-Agent: x", 403, 403),
        ("GET /case/ | User-Agent: x", 200, 200),
        ("DELETE /case/", 403, 403),
    ]);
}

/// nginx asks the expressions in a prefix only if that is the longest one.
#[test]
fn nested_locations() {
    let site = include_str!("../../fixtures/import/beside/nested_locations.conf");
    Beside::start(site).check(&[
        ("GET /x.css", 200, 200),
        ("GET /x.php", 418, 418),
        ("GET /admin/", 403, 403),
        ("GET /admin/x.css", 403, 403),
        ("GET /admin/x.php", 418, 418),
        ("GET /if/x.css", 403, 403),
        ("GET /login/a.css", 200, 200),
        ("GET /login/b.css", 503, 503),
        ("GET /c/x.js", 418, 418),
        ("GET /d/x.js", 403, 403),
        ("GET /uploads/x.php", 403, 403),
        ("GET /uploads/a.zip", 200, 200),
        ("GET /uploads/b.zip", 503, 503),
        ("GET /uploads/.ht", 404, 404),
        ("GET /uploads/x/.ht", 404, 404),
        ("GET /uploads/x", 200, 200),
        ("GET /.ht", 200, 200),
        ("GET /own/x.txt", 403, 403),
        ("GET /other/x.txt", 200, 200),
        ("GET /same/", 403, 403),
        ("GET /outer/a/b/c", 403, 403),
        ("GET /outer/a/x", 200, 200),
        ("GET /re/x.bak", 404, 404),
        ("GET /re/x", 200, 501),
        ("GET /pub/v2/a", 403, 403),
        ("GET /pub/admin/v2/a", 200, 200),
        ("GET /v2/", 200, 200),
        ("PUT /m/", 405, 405),
        ("GET /m/", 200, 200),
        ("GET /zone/", 200, 200),
        ("GET /zone/", 200, 200),
        ("GET /zone/ | X-A: 1", 200, 200),
        ("GET /zone/ | X-A: 1", 503, 503),
        ("GET /zone/ | X-A: 1 | X-B: 1", 200, 200),
        ("GET /v2/ | Host: b.example", 418, 418),
        ("GET /a/v2/ | Host: b.example", 403, 403),
        ("GET /outer/a/b/public", 403, 403),
        ("GET /outer/a/b/public/", 200, 200),
        ("GET /outer/a/b/public/x", 200, 200),
    ]);
}

#[test]
fn a_prefix_is_replaced_as_in_nginx() {
    let site = "server { listen 127.0.0.1:@PORT@;\n\
                location /api/ { proxy_pass http://127.0.0.1:@UP@/v1/; }\n\
                location /off/ { proxy_pass http://127.0.0.1:@UP@/; }\n\
                location ^~ /firm/ { proxy_pass http://127.0.0.1:@UP@/files/; }\n\
                location ~ \\.php$ { deny all; }\n\
                location = /one { proxy_pass http://127.0.0.1:@UP@/two; }\n\
                location / { proxy_pass http://127.0.0.1:@UP@; } }\n";
    let beside = Beside::start(site);
    for (path, seen) in [
        ("/api/a/b?c=d", "/v1/a/b?c=d"),
        ("/api/", "/v1/"),
        ("/off/a%20b", "/a%20b"),
        ("/firm/x.php", "/files/x.php"),
        ("/one", "/two"),
        ("/other", "/other"),
    ] {
        let request = format!("GET {path}");
        let both = [beside.theirs, beside.ours.address].map(|at| asked(at, &request).1);
        assert_eq!(both, [seen, seen], "{path}\n{}", beside.text);
    }
}

#[test]
fn without_its_certificate_a_site_is_never_served_over_plain_text() {
    let certbot = "server { if ($host = a.example) { return 301 https://$host$request_uri; }\n\
                   listen 80; server_name a.example; return 404; }\n";
    let redirect = "server { listen 80; server_name a.example;\n\
                    location /.well-known/acme-challenge/ { root /srv; }\n\
                    location / { return 301 https://a.example$request_uri; } }\n";
    let mixed = "server { listen 80; server_name b.example;\n\
                 location / { proxy_pass http://127.0.0.1:1; } }\n";
    for plain in [certbot, redirect, mixed, ""] {
        let source = tempfile::tempdir().unwrap();
        let conf = format!(
            "{plain}server {{ listen 443 ssl; server_name a.example; ssl_certificate no.pem;\n\
             ssl_certificate_key no.key; location / {{ proxy_pass http://127.0.0.1:1; }} }}\n"
        );
        fs::write(source.path().join("site.conf"), conf).unwrap();
        let output = run(source.path(), &["import", "nginx", "site.conf"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let ours = Tidegate::start(&text.replace("listen = [\":80\"]\n", ""));
        let answer = ours.get("/x?y");
        assert_eq!(answer.status, 308, "{text}");
        let place = answer.header("location").unwrap();
        assert!(
            place.starts_with("https://") && place.ends_with("/x?y"),
            "{place}"
        );
    }
}

#[test]
fn an_address_is_believed_from_the_header_that_nginx_believes() {
    for (header, said) in [
        ("", "[client_ip]\nheader = \"x-real-ip\"\n"),
        (
            "real_ip_header CF-Connecting-IP;",
            "[client_ip]\nheader = \"cf-connecting-ip\"\n",
        ),
    ] {
        let source = tempfile::tempdir().unwrap();
        let conf = format!(
            "set_real_ip_from 10.0.0.0/8; {header}\nmax_headers 50;\n\
             http2_max_concurrent_streams 7;\nserver {{ listen 80;\n\
             location / {{ proxy_pass http://127.0.0.1:1; proxy_http_version 2;\n\
             add_header X-A 1; add_header X-A 2; }} }}\n"
        );
        fs::write(source.path().join("site.conf"), conf).unwrap();
        let output = run(source.path(), &["import", "nginx", "site.conf"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(said), "{text}");
        assert!(text.contains("max_headers            = 50"), "{text}");
        assert!(text.contains("max_streams            = 7"), "{text}");
        assert!(text.contains("underscores_in_headers = false"), "{text}");
        assert!(text.contains("[\"h2c://127.0.0.1:1\"]"), "{text}");
        assert!(text.contains("{ \"+x-a\" = [\"1\", \"2\"] }"), "{text}");
    }
}
