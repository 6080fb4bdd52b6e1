//! Certificates, which clients bring, and tokens: any bytes are read, or are nothing.

use tidegate::certificate::Certificate;

#[test]
fn any_bytes_are_a_certificate_or_none() {
    bolero::check!(name = "certificate")
        .with_max_len(2048)
        .for_each(|input: &[u8]| {
            if let Some(read) = Certificate::read(input) {
                assert!(read.subject.len() < 16 * input.len());
                assert!(
                    read.hosts().iter().all(|host| !host.contains('\0')),
                    "{read:?}"
                );
            }
        });
}
