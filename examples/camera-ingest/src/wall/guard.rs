// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission of requests by their header Origin, and by the token of the page.
//!
//! A web page of another site can make a browser connect to this server in three ways, and each has
//! its check: by the server's address (the Origin is foreign), by a form or an image (there is no
//! token), and by a name that resolves to this server (DNS rebinding: the Host is foreign, and
//! `frameshare_http::Server` refuses it before).

use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use std::io;

/// Header with the token of the page.
pub const TOKEN: HeaderName = HeaderName::from_static("x-page-token");

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the request has no valid header {0}, or several")]
    Missing(HeaderName),
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
    token: String,
}

impl Guard {
    /// Makes the rules with a new token.
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn new() -> io::Result<Self> {
        let mut random = [0_u8; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self { token: random.iter().map(|byte| format!("{byte:02x}")).collect() })
    }

    /// The token that [`Guard::check_token`] wants.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Checks that the request comes from a page of this server: its Origin has the Host of the
    /// request.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = single(headers, header::HOST)?;
        let origin = single(headers, header::ORIGIN)?;
        let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        match from.is_some_and(|from| from.eq_ignore_ascii_case(host)) {
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

    fn guard() -> Guard {
        Guard::new().unwrap()
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn origin_must_be_the_host() {
        let guard = guard();
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
        let two = headers(&[("host", "127.0.0.1"), ("host", "x"), ("origin", "http://127.0.0.1")]);
        assert_eq!(guard.check_origin(&two), Err(Refusal::Missing(header::HOST)));
    }

    #[test]
    fn token_must_be_complete_and_equal() {
        let guard = guard();
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
        assert_ne!(own, Guard::new().unwrap().token());
    }
}
