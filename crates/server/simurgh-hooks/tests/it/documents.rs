//! Documents that the server reads, such as keys of tokens (B86).

use simurgh_hooks::{Document, TlsConfig};

use crate::support::app::{App, Reply, closed_port, ok, status};

fn document(url: &str) -> Document {
    Document::new(url.parse().unwrap(), TlsConfig::default()).unwrap()
}

#[tokio::test]
async fn document_is_read_over_one_connection_and_only_with_status_200() {
    let app = App::new(|number, _| match number {
        0 => Reply::Answer(ok("{\"keys\":[]}")),
        1 => Reply::Answer(status(302, "location: /login\r\n", "")),
        2 => Reply::Answer(status(404, "", "no such page")),
        3 => Reply::Answer(ok(&"x".repeat(64 * 1024))),
        _ => Reply::Endless("HTTP/1.1 200 OK\r\n\r\n".to_owned()),
    });
    let url = app.listen().await.url;
    let document = document(&format!("http://{}/keys.json?v=1", url.authority().unwrap()));
    assert_eq!(document.read().await.unwrap(), "{\"keys\":[]}");
    assert_eq!(document.read().await.unwrap_err(), "status 302, body \"\"");
    assert_eq!(document.read().await.unwrap_err(), "status 404, body \"no such page\"");
    assert_eq!(document.read().await.unwrap().len(), 64 * 1024);
    assert_eq!(document.read().await.unwrap_err(), "it is longer than 64 KiB");
    let requests = app.requests();
    let [first, ..] = &*requests else { panic!("no request") };
    assert_eq!(first.path, "/keys.json?v=1");
    assert_eq!(first.headers["host"], url.authority().unwrap().as_str());
    assert!(requests.iter().all(|request| request.connection == 0));
}

#[tokio::test]
async fn document_of_a_link_local_address_or_a_closed_port_is_not_read() {
    let error = document("http://169.254.169.254/keys").read().await.unwrap_err();
    assert!(error.contains("link-local"), "{error}");
    let url = format!("http://127.0.0.1:{}/keys", closed_port().await);
    let error = document(&url).read().await.unwrap_err();
    assert!(error.starts_with("cannot connect"), "{error}");
}
