// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission of requests by their header Host.

use http::{HeaderMap, header, uri::Authority};
use std::net::{IpAddr, SocketAddr};

/// The names of one server. A request for another one is refused: a web page of another site can
/// have its own name resolve to this server (DNS rebinding), and so read answers through a browser.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<String>);

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignHost {
    /// There is no header Host, or several, or an invalid one.
    #[error("the request has no valid header host, or several")]
    Missing,
    /// The Host is none of this server's.
    #[error(
        "foreign Host '{0}': use an IP address, localhost, or this machine's host name if the server listens \
         beyond the loopback interface"
    )]
    Foreign(String),
}

impl Hosts {
    /// Returns the names of a server that listens on this address: all IP addresses, `localhost`,
    /// these further names, and this machine's host name if other machines reach the server.
    pub fn new(listen: SocketAddr, further: impl IntoIterator<Item = String>) -> Self {
        let system = rustix::system::uname();
        let own = || system.nodename().to_string_lossy().into_owned();
        let own = (!listen.ip().is_loopback()).then(own);
        let names = further.into_iter().chain(own).chain(["localhost".to_owned()]);
        Self(names.map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Checks the Host of a request. An IP address cannot be rebound by DNS.
    ///
    /// # Errors
    /// [`ForeignHost`].
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ForeignHost> {
        let mut values = headers.get_all(header::HOST).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Err(ForeignHost::Missing) };
        let host = value.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
        // An authority of a URI may name a user; a Host may not.
        let host = host.filter(|host| !host.as_str().contains('@')).ok_or(ForeignHost::Missing)?;
        let name = host.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        match self.0.contains(&name) || name.parse::<IpAddr>().is_ok() {
            true => Ok(()),
            false => Err(ForeignHost::Foreign(host.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &Hosts, fields: &[&str]) -> Result<(), ForeignHost> {
        let mut headers = HeaderMap::new();
        for value in fields {
            headers.append(header::HOST, value.parse().unwrap());
        }
        hosts.check(&headers)
    }

    fn hosts(listen: &str) -> Hosts {
        Hosts::new(listen.parse().unwrap(), [])
    }

    #[test]
    fn addresses_and_localhost_are_admitted() {
        let hosts = hosts("127.0.0.1:8080");
        for host in ["127.0.0.1:8080", "127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8080", "192.0.2.7"]
        {
            assert_eq!(check(&hosts, &[host]), Ok(()), "{host}");
        }
    }

    #[test]
    fn rebound_names_are_refused() {
        let hosts = hosts("127.0.0.1:8080");
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"]
        {
            assert_eq!(check(&hosts, &[host]), Err(ForeignHost::Foreign(host.to_owned())), "{host}");
        }
        for host in ["", "user@127.0.0.1", "a b"] {
            assert_eq!(check(&hosts, &[host]), Err(ForeignHost::Missing), "{host}");
        }
        assert_eq!(check(&hosts, &["127.0.0.1", "evil.example"]), Err(ForeignHost::Missing));
        assert_eq!(check(&hosts, &[]), Err(ForeignHost::Missing));
    }

    #[test]
    fn host_name_is_admitted_beyond_loopback_only() {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let request = format!("{name}:8080");
        assert_eq!(check(&hosts("0.0.0.0:8080"), &[&request]), Ok(()));
        if name != "localhost" {
            assert!(check(&hosts("127.0.0.1:8080"), &[&request]).is_err());
        }
    }

    #[test]
    fn further_names_are_admitted() {
        let hosts = Hosts::new("0.0.0.0:1".parse().unwrap(), ["Cameras.example".to_owned()]);
        assert_eq!(check(&hosts, &["cameras.example:1"]), Ok(()));
        assert!(check(&hosts, &["x.cameras.example"]).is_err());
    }
}
