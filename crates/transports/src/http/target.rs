//! Which URLs may be posted to.
//!
//! A destination can come from a row, so whoever writes rows would otherwise
//! decide what this process talks to: a URL that is not configured under a
//! name must begin with a prefix that is allowed. Addresses that give out a
//! machine's credentials are refused whatever the name in front of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::Uri;

/// What is allowed beyond the safe default.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leeway {
    /// Plain http to other machines.
    pub(super) plain_http: bool,
    /// Link-local addresses, where clouds keep their metadata services.
    pub(super) link_local: bool,
}

/// A URL that was checked. Shown as its origin: paths and queries of web hooks
/// are often secrets.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    uri: Uri,
}

impl Target {
    /// Checks a URL; the error says what is wrong with it without quoting it.
    pub(super) fn parse(url: &str, leeway: Leeway) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "it is not a URL".to_owned())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err("it is not an absolute URL".into());
        };
        if authority.as_str().contains('@') {
            return Err("a URL must not contain a user or a password".into());
        }
        if url.contains('#') {
            return Err("a URL to post to has no fragment".into());
        }
        if authority.host().is_empty() || authority.port().is_some_and(|port| port.as_u16() == 0) {
            return Err("the URL names no host or no port".into());
        }
        let scheme = scheme.to_owned();
        let target = Self { uri };
        match scheme.as_str() {
            "https" => {}
            "http" if leeway.plain_http || target.is_loopback() => {}
            "http" => return Err(format!("{target} is plain http to another machine, which is not allowed")),
            _ => return Err("a URL to post to begins with https://".into()),
        }
        match target.address() {
            Some(address) if !leeway.link_local && is_link_local(address) => {
                Err(format!("{target} is a link-local or metadata address, which is not allowed"))
            }
            _ => Ok(target),
        }
    }

    pub(super) const fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(super) fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Whether the URL speaks of this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let is_localhost = self.uri.host().is_some_and(is_localhost);
        is_localhost || self.address().is_some_and(|address| canonical(address).is_loopback())
    }

    /// Whether this URL lies below `prefix`: the same origin, and its path goes
    /// on at a segment's end. One that climbs out again does not.
    pub(super) fn is_below(&self, prefix: &Self) -> bool {
        let path = self.uri.path();
        if self.origin() != prefix.origin() || has_dot_segment(path) {
            return false;
        }
        let Some(rest) = path.strip_prefix(prefix.uri.path()) else { return false };
        rest.is_empty() || prefix.uri.path().ends_with('/') || rest.starts_with('/')
    }

    fn origin(&self) -> (Option<&str>, Option<String>, u16) {
        let port = self.uri.port_u16().unwrap_or(if self.is_https() { 443 } else { 80 });
        (self.uri.scheme_str(), self.uri.host().map(str::to_ascii_lowercase), port)
    }

    fn address(&self) -> Option<IpAddr> {
        let host = self.uri.host()?;
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse().ok()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}", self.uri.scheme_str().unwrap_or_default())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server may take `%2e%2e` and `\` for a step up.
fn has_dot_segment(path: &str) -> bool {
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    plain.replace('\\', "/").split('/').any(|segment| segment == "." || segment == "..")
}

/// Names that mean this machine and nothing else.
pub(super) fn is_localhost(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
}

/// Addresses that are nobody's web hook: link-local ones, the metadata services
/// that sit elsewhere, and those that name no single host.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    const ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
    const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    const AWS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);
    match canonical(address) {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || first == 0
                || [ALIBABA, AZURE].contains(&address)
        }
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || address.is_multicast()
                || address.is_unspecified()
                || [AWS, GOOGLE].contains(&address)
        }
    }
}

/// An IPv4 address in IPv6 clothes is that IPv4 address, translated ones (NAT64) too.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = v6.segments() {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        return IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    }
    address.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Target, String> {
        Target::parse(url, Leeway::default())
    }

    #[test]
    fn a_target_is_https_or_on_this_machine() {
        for url in [
            "https://hooks.example.com/orders?token=1",
            "https://hooks.example.com:8443",
            "http://localhost:3000/hook",
            "http://127.0.0.1:3000/hook",
            "http://[::1]:3000/hook",
            "https://10.0.0.7/",
        ] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "orders",
            "/hook",
            "ftp://example.com/",
            "http://example.com/",
            "http://localhost.example.com/",
            "http://127.0.0.1.example.com/",
            "https://user:secret@example.com/",
            "https://example.com/#top",
            "https://169.254.169.254/latest/meta-data",
            "https://[fe80::1]/",
            "https://[::ffff:169.254.169.254]/",
            "https://[64:ff9b::a9fe:a9fe]/",
            "https://[fd00:ec2::254]/",
            "https://0.0.0.0/",
            "https://example.com:0/",
        ] {
            let refused = parse(url).expect_err(url);
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn what_is_allowed_is_accepted() {
        let plain_http = Leeway { plain_http: true, ..Leeway::default() };
        let link_local = Leeway { link_local: true, ..Leeway::default() };

        assert!(Target::parse("http://example.com/", plain_http).is_ok());
        assert!(Target::parse("https://169.254.1.1/", plain_http).is_err());
        assert!(Target::parse("https://169.254.1.1/", link_local).is_ok());
    }

    #[test]
    fn a_prefix_covers_whole_segments_of_its_own_origin() {
        let is_below = |url: &str, prefix: &str| parse(url).unwrap().is_below(&parse(prefix).unwrap());

        for (url, prefix) in [
            ("https://a.test/hooks/1", "https://a.test/hooks"),
            ("https://a.test/hooks/1", "https://a.test/hooks/"),
            ("https://a.test/hooks", "https://a.test/hooks"),
            ("https://A.test:443/x", "https://a.test"),
        ] {
            assert!(is_below(url, prefix), "{url} {prefix}");
        }
        for (url, prefix) in [
            ("https://a.test/hooks2", "https://a.test/hooks"),
            ("https://a.test.evil.test/hooks/1", "https://a.test/hooks"),
            ("https://a.test:8443/hooks/1", "https://a.test/hooks"),
            ("http://localhost/hooks/1", "https://localhost/hooks"),
            ("https://a.test/hooks/../admin", "https://a.test/hooks"),
            ("https://a.test/hooks/%2E%2e/admin", "https://a.test/hooks"),
            ("https://a.test/hooks/..%5cadmin", "https://a.test/hooks"),
        ] {
            assert!(!is_below(url, prefix), "{url} {prefix}");
        }
    }

    #[test]
    fn a_target_shows_its_origin_only() {
        let target = parse("https://hooks.test:8443/services/T0/SECRET?token=SECRET").unwrap();

        assert_eq!(format!("{target} {target:?}"), "https://hooks.test:8443 https://hooks.test:8443");
    }
}
