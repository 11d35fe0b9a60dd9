//! Tests that addresses are parsed and printed correctly.

use super::*;

#[test]
fn addresses_are_read_and_written() {
    let tcp = |host: &str, port| Server::Tcp(host.to_owned(), port);
    for (text, server, export, shown) in [
        ("nbd://host", tcp("host", PORT), "", "nbd://host/"),
        ("nbd://host:10809/a/b", tcp("host", PORT), "a/b", "nbd://host/a/b"),
        ("nbd://[::1]:7/x%20y", tcp("::1", 7), "x y", "nbd://[::1]:7/x%20y"),
        ("nbd://[fe80::1]", tcp("fe80::1", PORT), "", "nbd://[fe80::1]/"),
        (
            "nbd+unix:///disk?socket=/run/a%3Fb",
            Server::Unix("/run/a?b".into()),
            "disk",
            "nbd+unix:///disk?socket=/run/a%3Fb",
        ),
        (
            "nbd+unix://?socket=s&timeout=5&flush=none",
            Server::Unix("s".into()),
            "",
            "nbd+unix:///?socket=s&timeout=5&flush=none",
        ),
    ] {
        let address: Address = text.parse().unwrap();
        assert_eq!((&address.server, address.export.as_str()), (&server, export), "{text}");
        assert_eq!(address.to_string(), shown);
        assert_eq!(shown.parse::<Address>().unwrap(), address);
    }
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "nbd:///export",
        "nbd://host:0/",
        "nbd://host:70000/",
        "nbd://host:/",
        "nbd://me@host/",
        "nbd+vsock://2/",
        "nbds+vsock://2/",
        "nbd://host/?tls-hostname=host",
        "nbd+unix:///export",
        "nbd+unix://host/export?socket=s",
        "nbd+unix:///?socket=",
        "nbd://host/?socket=s",
        "nbd://host/?timeout=0",
        "nbd://host/?timeout=x",
        "nbd://host/?flush=all",
        "nbd://host/%4",
        "nbd://host/%FF",
    ] {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn addresses_with_tls_are_read_and_written() {
    let tls = |directory: Option<&str>, hostname: Option<&str>| Tls::Certificates {
        directory: directory.map(Into::into),
        hostname: hostname.map(str::to_owned),
    };
    for (text, expected, shown) in [
        ("nbds://host", tls(None, None), "nbds://host/"),
        ("nbds://host/?tls-type=x509&tls-verify-peer=1", tls(None, None), "nbds://host/"),
        (
            "nbds://[::1]:7/x?tls-certificates=/etc/pki/a%26b&tls-hostname=other&timeout=5",
            tls(Some("/etc/pki/a&b"), Some("other")),
            "nbds://[::1]:7/x?tls-certificates=/etc/pki/a%26b&tls-hostname=other&timeout=5",
        ),
        (
            "nbds+unix:///disk?tls-hostname=host&socket=s",
            tls(None, Some("host")),
            "nbds+unix:///disk?socket=s&tls-hostname=host",
        ),
    ] {
        let address: Address = text.parse().unwrap();
        assert_eq!(address.tls.as_ref(), Some(&expected), "{text}");
        assert_eq!(address.to_string(), shown);
        assert_eq!(shown.parse::<Address>().unwrap(), address);
    }
    let relative: Address =
        "nbds+unix:///?socket=s&tls-certificates=c&tls-hostname=h".parse().unwrap();
    let absolute = relative.with_path(&|path| Some(Path::new("/d").join(path)));
    let shown = "nbds+unix:///?socket=/d/s&tls-certificates=/d/c&tls-hostname=h";
    assert_eq!(absolute.to_string(), shown);
}

#[cfg(feature = "psk")]
#[test]
fn addresses_with_pre_shared_keys_are_read_and_written() {
    for (text, user, shown) in [
        ("nbds://me@host/?tls-psk-file=k", "me", "nbds://me@host/?tls-psk-file=k"),
        (
            "nbds+unix://a%40b@/x?socket=s&tls-type=psk&tls-psk-file=k",
            "a@b",
            "nbds+unix://a%40b@/x?socket=s&tls-psk-file=k",
        ),
    ] {
        let address: Address = text.parse().unwrap();
        let expected = Tls::Psk { keys: "k".into(), user: user.to_owned() };
        assert_eq!(address.tls.as_ref(), Some(&expected), "{text}");
        assert_eq!(address.to_string(), shown);
        assert_eq!(shown.parse::<Address>().unwrap(), address);
    }
    let relative: Address = "nbds://me@host/?tls-psk-file=k".parse().unwrap();
    let absolute = relative.with_path(&|path| Some(Path::new("/d").join(path)));
    assert_eq!(absolute.to_string(), "nbds://me@host/?tls-psk-file=/d/k");
    for (text, part) in [
        ("nbds://me@host/", "tls-psk-file=FILE is missing"),
        ("nbds://host/?tls-psk-file=/keys", "the user of the key"),
        ("nbds://@host/?tls-psk-file=/keys", "the user of the key"),
        ("nbds://host/?tls-type=psk", "the user of the key"),
        ("nbds://me@host:7@p1?tls-psk-file=/k", "@pN comes last"),
        ("nbds://a%00@host/?tls-psk-file=/k", "control characters"),
        ("nbds://a%0Ab@host/?tls-psk-file=/k", "control characters"),
        ("nbds://me@host/?tls-psk-file=", "is not valid"),
        (
            "nbds://me@host/?tls-psk-file=/k&tls-hostname=x",
            "a pre-shared key cannot be combined with",
        ),
        (
            "nbds://me@host/?tls-psk-file=/k&tls-certificates=x",
            "a pre-shared key cannot be combined with",
        ),
        ("nbds://me@host/?tls-psk-file=/k&tls-type=x509", "certificates cannot be combined with"),
    ] {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.starts_with(text) && error.contains(part), "{error}");
    }
}

/// If an address requests a method that does not verify the server, the error points to the verification that ironmap requires.
#[cfg(feature = "tls")]
#[test]
fn other_ways_to_authenticate_are_refused() {
    for (text, part) in [
        ("nbds://host/?tls-type=anon", "ironmap always verifies the server"),
        ("nbds://host/?tls-verify-peer=0", "ironmap always verifies the server"),
        ("nbds://host/?tls-verify-peer=false", "ironmap always verifies the server"),
        ("nbds://host/?tls-verify-peer=", "is not valid"),
        ("nbds://host/?tls-hostname=", "is not valid"),
        ("nbds://host/?tls-certificates=", "is not valid"),
        ("nbds://host/?tls-priority=NORMAL", "is not valid"),
        ("nbds+unix:///?socket=s", "tls-hostname=NAME is missing"),
    ] {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.starts_with(text) && error.contains(part), "{error}");
    }
}

#[cfg(all(feature = "tls", not(feature = "psk")))]
#[test]
fn pre_shared_keys_are_refused_where_they_are_not_built() {
    for text in ["nbds://me@host/", "nbds://host/?tls-psk-file=/keys", "nbds://host/?tls-type=psk"]
    {
        let error = text.parse::<Address>().unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Unsupported);
        assert!(error.to_string().contains(WITHOUT_PSK), "{error}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_is_refused_where_it_is_not_built() {
    for text in ["nbds://host/", "nbds+unix:///?socket=s&tls-hostname=host"] {
        let error = text.parse::<Address>().unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Unsupported);
        assert!(error.to_string().contains(WITHOUT_TLS), "{error}");
    }
}
