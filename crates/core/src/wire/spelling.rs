//! The names of header lines as nearly everybody spells them: known at a glance, where others are
//! looked at byte by byte. Pure words.

use http::header::{self, HeaderName};

/// The name that is spelled so; nothing if that is no name.
pub fn name(spelled: &[u8]) -> Option<HeaderName> {
    Some(match spelled {
        b"Host" | b"host" => header::HOST,
        b"ETag" | b"etag" => header::ETAG,
        b"Date" | b"date" => header::DATE,
        b"Vary" | b"vary" => header::VARY,
        b"Accept" | b"accept" => header::ACCEPT,
        b"Cookie" | b"cookie" => header::COOKIE,
        b"Origin" | b"origin" => header::ORIGIN,
        b"Server" | b"server" => header::SERVER,
        b"Referer" | b"referer" => header::REFERER,
        b"Location" | b"location" => header::LOCATION,
        b"Connection" | b"connection" => header::CONNECTION,
        b"User-Agent" | b"user-agent" => header::USER_AGENT,
        b"Set-Cookie" | b"set-cookie" => header::SET_COOKIE,
        b"Content-Type" | b"content-type" => header::CONTENT_TYPE,
        b"Cache-Control" | b"cache-control" => header::CACHE_CONTROL,
        b"Authorization" | b"authorization" => header::AUTHORIZATION,
        b"Last-Modified" | b"last-modified" => header::LAST_MODIFIED,
        b"Content-Length" | b"content-length" => header::CONTENT_LENGTH,
        b"Accept-Encoding" | b"accept-encoding" => header::ACCEPT_ENCODING,
        b"Accept-Language" | b"accept-language" => header::ACCEPT_LANGUAGE,
        b"Content-Encoding" | b"content-encoding" => header::CONTENT_ENCODING,
        b"Transfer-Encoding" | b"transfer-encoding" => header::TRANSFER_ENCODING,
        _ => return HeaderName::from_bytes(spelled).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_what_it_would_be_read_as() {
        let spelled = [
            "Host ETag Date Vary Accept Cookie Origin Server Referer Location Connection",
            "User-Agent Set-Cookie Content-Type Cache-Control Authorization Last-Modified",
            "Content-Length Accept-Encoding Accept-Language Content-Encoding Transfer-Encoding",
        ];
        for spelled in spelled.iter().flat_map(|line| line.split(' ')) {
            for spelled in [spelled, &spelled.to_lowercase()] {
                let read = HeaderName::from_bytes(spelled.as_bytes()).ok();
                assert_eq!(name(spelled.as_bytes()), read);
            }
        }
        assert_eq!(name(b"hOST"), Some(header::HOST));
        assert_eq!(name(b"a b"), None);
    }
}
