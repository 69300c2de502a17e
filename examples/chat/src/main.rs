//! Serves the chat: the page at `/`, its socket at `/socket`.

use clap::Parser;
use simurgh::Endpoint;

/// A chat for browsers and for any client of Phoenix Channels.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4000")]
    listen: String,
}

fn main() -> Result<(), simurgh::Error> {
    let args = Args::parse();
    Endpoint::builder()
        .socket(chat::user_socket())
        .http(chat::page())
        .listen(&args.listen)
        .on_ready(|endpoint| {
            for address in endpoint.addresses() {
                println!("listening on http://{address}");
            }
        })
        .run()
}
