//! Certificates of a test's own, a proxy that shows them, and clients that look at them.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use tempfile::TempDir;
use tidegate::certificate::Certificate;

use crate::house::{PATIENCE, Tidegate, Upstream};
use crate::support::free_port;

/// An authority whose files lie in the proxy's directory.
pub struct Authority {
    name: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Writes `NAME.pem`.
    pub fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        std::fs::write(folder.join(format!("{name}.pem")), pem).unwrap();
        Authority {
            name: name.to_owned(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A pair for these hosts that ends with that year: its two files' contents.
    pub fn sign(&self, common: &str, hosts: &[&str], end: i32) -> (String, String) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, &*self.name);
        params.distinguished_name.push(DnType::CommonName, common);
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(end, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    }

    /// Writes `LIST.crl`, by which the certificates in the files of these names are revoked.
    pub fn revoke(&self, folder: &Path, list: &str, names: &[&str]) {
        let serial_of = |name: &&str| {
            let pem = std::fs::read(folder.join(format!("{name}.pem"))).unwrap();
            let der = CertificateDer::from_pem_slice(&pem).unwrap();
            let serial = Certificate::read(&der).unwrap().serial;
            let bytes = (0..serial.len()).step_by(2);
            let bytes = bytes.map(|at| u8::from_str_radix(&serial[at..at + 2], 16).unwrap());
            SerialNumber::from(bytes.collect::<Vec<u8>>())
        };
        let revoked = names.iter().map(|name| RevokedCertParams {
            serial_number: serial_of(name),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2999, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let pem = params.signed_by(&self.issuer).unwrap().pem().unwrap();
        std::fs::write(folder.join(format!("{list}.crl")), pem).unwrap();
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str, hosts: &[&str], end: i32) {
        let (pem, key) = self.sign(name, hosts, end);
        std::fs::write(folder.join(format!("{name}.pem")), pem).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), key).unwrap();
    }
}

/// A proxy with TLS before an upstream.
pub struct Stage {
    pub proxy: Tidegate,
    pub upstream: Upstream,
    pub secure: SocketAddr,
    pub ca: Authority,
}

impl Stage {
    /// `tls` is what `[tls]` says besides `listen` and the certificates `one` (localhost, 127.0.0.1,
    /// one.test) and `two` (two.test, *.wild.test); `rest` follows.
    pub fn start(tls: &str, rest: &str) -> Stage {
        Stage::before(Upstream::ok(), tls, rest)
    }

    pub fn before(upstream: Upstream, tls: &str, rest: &str) -> Stage {
        Stage::start_with(&[], (upstream, tls, rest))
    }

    /// Certificates of these names are in the list `revoked.crl`.
    pub fn with_revoked(names: &[&str], tls: &str, rest: &str) -> Stage {
        Stage::start_with(names, (Upstream::ok(), tls, rest))
    }

    fn start_with(revoked: &[&str], parts: (Upstream, &str, &str)) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path();
        let ca = Authority::new(folder, "ca");
        ca.write(folder, "one", &["localhost", "127.0.0.1", "one.test"], 2999);
        ca.write(folder, "two", &["two.test", "*.wild.test"], 2999);
        ca.write(folder, "ann", &[], 2999);
        ca.write(folder, "bob", &[], 2999);
        ca.write(folder, "late", &[], 2020);
        std::fs::copy(folder.join("ca.pem"), folder.join("clients.pem")).unwrap();
        Authority::new(folder, "stranger").write(folder, "eve", &[], 2999);
        ca.revoke(folder, "revoked", revoked);
        Stage::with(directory, ca, parts)
    }

    fn with(
        directory: TempDir,
        ca: Authority,
        (upstream, tls, rest): (Upstream, &str, &str),
    ) -> Stage {
        let port = free_port();
        let url = upstream.url();
        let config = format!(
            "upstream = \"{url}\"\n[tls]\nlisten = \"127.0.0.1:{port}\"\n\
             certificates = [{{ cert = \"one.pem\", key = \"one.key\" }}, \
             {{ cert = \"two.pem\", key = \"two.key\" }}]\n{tls}\n{rest}\n"
        );
        let config = config.replace("$PORT", &port.to_string());
        let proxy = Tidegate::start_in(directory, &config, &[("RUST_LOG", "debug")]);
        Stage {
            proxy,
            upstream,
            secure: ([127, 0, 0, 1], port).into(),
            ca,
        }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.proxy.directory.path().join(name)
    }

    /// curl, which knows the authority, for `https://HOST/PATH` with more arguments.
    pub fn curl(&self, host: &str, path: &str, more: &[&str]) -> Output {
        let port = self.secure.port();
        Command::new("curl")
            .args([
                "-sS",
                "-i",
                "--http1.1",
                "--max-time",
                "20",
                "--cacert",
                "ca.pem",
            ])
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .args(more)
            .arg(format!("https://{host}:{port}{path}"))
            .current_dir(self.proxy.directory.path())
            .output()
            .unwrap()
    }

    /// The same where it must work.
    pub fn curled(&self, host: &str, path: &str, more: &[&str]) -> String {
        let output = self.curl(host, path, more);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// `openssl s_client` that asks for this host, or for none; `/` is asked for on its standard input.
    pub fn openssl(&self, host: &str, more: &[&str]) -> String {
        let ask = "printf 'GET / HTTP/1.0\\r\\nHost: a.test\\r\\n\\r\\n'";
        let asked = match host {
            "" => "-noservername".to_owned(),
            host => format!("-servername {host}"),
        };
        let connect = format!(
            "{ask} | timeout 20 openssl s_client -ign_eof -connect {} {asked} \
             -CAfile ca.pem {} 2>&1",
            self.secure,
            more.join(" ")
        );
        let output = Command::new("sh")
            .args(["-c", &connect])
            .current_dir(self.proxy.directory.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Settings of a rustls client that knows the authority.
    pub fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let pem = std::fs::read(self.file("ca.pem")).unwrap();
        roots
            .add(CertificateDer::from_pem_slice(&pem).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }

    /// The same that shows the certificate of `name`.
    pub fn client_as(&self, name: &str, config: &ClientConfig) -> Arc<ClientConfig> {
        let mut config = config.clone();
        let read = |ending: &str| std::fs::read(self.file(&format!("{name}.{ending}"))).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(&read("pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&read("key")).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let identity = rustls::sign::CertifiedKey::from_der(chain, key, &provider).unwrap();
        config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(identity));
        Arc::new(config)
    }
}

/// A connection of that client.
pub fn connect(
    config: &Arc<ClientConfig>,
    address: SocketAddr,
    host: &str,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(
        ClientConnection::new(Arc::clone(config), name).unwrap(),
        stream,
    )
}
