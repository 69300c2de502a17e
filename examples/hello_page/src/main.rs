//! Serves the page at `/`.

use clap::Parser;
use simurgh::Endpoint;

/// As in the binary `simurgh`: a page is a few dozen small blocks, allocated and dropped again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A small page, rendered for each request.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4000")]
    listen: String,
}

fn main() -> Result<(), simurgh::Error> {
    let args = Args::parse();
    Endpoint::builder()
        .http(hello_page::router())
        .listen(&args.listen)
        .on_ready(|endpoint| {
            for address in endpoint.addresses() {
                println!("listening on http://{address}");
            }
        })
        .run()
}
