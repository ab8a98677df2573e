// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission of requests by their headers Host and Origin, and by the token of the page.
//!
//! A web page of another site can make a browser connect to this server in three ways, and each has
//! its check: by the server's address (the Origin is foreign), by a name that resolves to this
//! server (DNS rebinding: the Host is foreign), and by a form or an image (there is no token).

use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header, uri::Authority},
    response::{IntoResponse, Response},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
};

/// Header with the token of the page.
pub const TOKEN: HeaderName = HeaderName::from_static("x-page-token");

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the request has no valid header {0}, or several")]
    Missing(HeaderName),
    #[error(
        "foreign Host '{0}': open the page by an IP address, as localhost, or by this machine's host name \
         if it listens beyond the loopback interface"
    )]
    Host(String),
    #[error("foreign Origin '{0}': only the page of this server may do this")]
    Origin(String),
    #[error("wrong token: reload the page")]
    Token,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (StatusCode::FORBIDDEN, format!("{self}\n")).into_response()
    }
}

/// The rules of one server.
pub struct Guard {
    /// Host name of this machine, if other machines reach the server.
    name: Option<String>,
    token: String,
}

impl Guard {
    /// Makes the rules for a server that listens on this address, with a new token.
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn new(listen: SocketAddr) -> io::Result<Self> {
        let mut random = [0_u8; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let system = rustix::system::uname();
        let name = || system.nodename().to_string_lossy().to_ascii_lowercase();
        Ok(Self { name: (!listen.ip().is_loopback()).then(name), token })
    }

    /// The token that [`Guard::check_token`] wants.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Checks the Host: an IP address cannot be rebound by DNS, and neither can these names.
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = authority_of(headers)?;
        let name = host.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let is_own = name == "localhost" || self.name.as_ref() == Some(&name);
        match is_own || name.parse::<IpAddr>().is_ok() {
            true => Ok(()),
            false => Err(Refusal::Host(host.to_string())),
        }
    }

    /// Checks that the request comes from a page of this server: its Origin has the Host of the
    /// request.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_host(headers)?;
        let host = authority_of(headers)?;
        let origin = single(headers, header::ORIGIN)?;
        let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        match from.is_some_and(|from| from.eq_ignore_ascii_case(host.as_str())) {
            true => Ok(()),
            false => Err(Refusal::Origin(origin.to_owned())),
        }
    }

    /// Checks the token of a request that changes something, and its Origin.
    pub fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_origin(headers)?;
        let given = single(headers, TOKEN)?.as_bytes();
        let own = self.token.as_bytes();
        // Takes the same time wherever the two differ.
        let difference = own.iter().zip(given).fold(0, |sum, (one, other)| sum | (one ^ other));
        match given.len() == own.len() && difference == 0 {
            true => Ok(()),
            false => Err(Refusal::Token),
        }
    }
}

fn authority_of(headers: &HeaderMap) -> Result<Authority, Refusal> {
    let authority: Authority =
        single(headers, header::HOST)?.parse().map_err(|_| Refusal::Missing(header::HOST))?;
    // An authority of a URI may name a user; a Host may not.
    match authority.as_str().contains('@') {
        true => Err(Refusal::Missing(header::HOST)),
        false => Ok(authority),
    }
}

/// Returns the value of a header that is there exactly once.
fn single(headers: &HeaderMap, name: HeaderName) -> Result<&str, Refusal> {
    let mut values = headers.get_all(&name).iter();
    match (values.next().and_then(|value| value.to_str().ok()), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(Refusal::Missing(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(listen: &str) -> Guard {
        Guard::new(listen.parse().unwrap()).unwrap()
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn addresses_and_localhost_are_admitted() {
        let guard = guard("127.0.0.1:8080");
        for host in ["127.0.0.1:8080", "127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8080", "192.0.2.7"]
        {
            assert_eq!(guard.check_host(&headers(&[("host", host)])), Ok(()), "{host}");
        }
    }

    #[test]
    fn rebound_names_are_refused() {
        let guard = guard("127.0.0.1:8080");
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"]
        {
            let refused = Err(Refusal::Host(host.to_owned()));
            assert_eq!(guard.check_host(&headers(&[("host", host)])), refused, "{host}");
        }
        for host in ["", "user@127.0.0.1", "a b"] {
            let refused = Err(Refusal::Missing(header::HOST));
            assert_eq!(guard.check_host(&headers(&[("host", host)])), refused, "{host}");
        }
        let twice = headers(&[("host", "127.0.0.1"), ("host", "evil.example")]);
        assert_eq!(guard.check_host(&twice), Err(Refusal::Missing(header::HOST)));
        assert_eq!(guard.check_host(&HeaderMap::new()), Err(Refusal::Missing(header::HOST)));
    }

    #[test]
    fn host_name_is_admitted_beyond_loopback_only() {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let request = headers(&[("host", &format!("{name}:8080"))]);
        assert_eq!(guard("0.0.0.0:8080").check_host(&request), Ok(()));
        if name != "localhost" {
            assert!(guard("127.0.0.1:8080").check_host(&request).is_err());
        }
    }

    #[test]
    fn origin_must_be_the_host() {
        let guard = guard("127.0.0.1:8080");
        let check =
            |origin| guard.check_origin(&headers(&[("host", "127.0.0.1:8080"), ("origin", origin)])).is_ok();
        assert!(check("http://127.0.0.1:8080") && check("https://127.0.0.1:8080"));
        let foreign =
            ["null", "http://127.0.0.1:9000", "http://localhost:8080", "http://evil.example", "file://", ""];
        for origin in foreign {
            assert!(!check(origin), "{origin}");
        }
        let none = headers(&[("host", "127.0.0.1:8080")]);
        assert_eq!(guard.check_origin(&none), Err(Refusal::Missing(header::ORIGIN)));
        // Equal, and both foreign.
        let rebound = headers(&[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")]);
        assert_eq!(guard.check_origin(&rebound), Err(Refusal::Host("evil.example:8080".to_owned())));
    }

    #[test]
    fn token_must_be_complete_and_equal() {
        let guard = guard("127.0.0.1:8080");
        let request = |token: &str| {
            headers(&[("host", "127.0.0.1"), ("origin", "http://127.0.0.1"), ("x-page-token", token)])
        };
        let own = guard.token();
        assert_eq!((own.len(), guard.check_token(&request(own))), (32, Ok(())));
        for token in ["", &own[1..], &format!("{own}0"), &"0".repeat(32)] {
            assert_eq!(guard.check_token(&request(token)), Err(Refusal::Token), "{token}");
        }
        let without = headers(&[("host", "127.0.0.1"), ("origin", "http://127.0.0.1")]);
        assert_eq!(guard.check_token(&without), Err(Refusal::Missing(TOKEN)));
        let foreign =
            headers(&[("host", "127.0.0.1"), ("origin", "http://evil.example"), ("x-page-token", own)]);
        assert!(matches!(guard.check_token(&foreign), Err(Refusal::Origin(_))));
        assert_ne!(own, Guard::new("127.0.0.1:8080".parse().unwrap()).unwrap().token());
    }
}
