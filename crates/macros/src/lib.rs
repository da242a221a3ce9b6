//! Sugar over two traits of oncebox: `Message` and `Handler`.
//!
//! Nothing here does what a hand-written `impl` could not. The expansions name
//! only `::oncebox` paths, so users depend on that crate, which also documents
//! the macros with examples that run.
//!
//! # Layout
//!
//! - `message`: `#[derive(Message)]`; `handler`: `#[handler]`.
//! - `option`: what may stand in their brackets, read into checked values.

mod handler;
mod message;
mod option;

use proc_macro::TokenStream;
use quote::quote;

/// Implements `oncebox::Message` for a type.
///
/// Options, in `#[message(...)]`:
///
/// - `name = "order.placed.v1"`: the stable name; required, 1 to 255 bytes.
/// - `version = 2`: the version of the payload's schema; 1 if left out.
/// - `key = "order_id"`: the field that is the ordering key; anything that implements `Display`.
/// - `destination = "orders"`: where such messages go; to the name if left out.
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let expansion = syn::parse(input).and_then(|input| message::expand(&input));
    expansion.unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Makes an `async fn` a handler.
///
/// The function takes `&mut Tx`, or `&mut Context<'_, Tx>` if it also puts
/// messages or leaves a reply, and the message by value, and returns
/// `Result<(), HandlerError>`. In its place stands a unit struct of the same
/// name that implements `oncebox::Handler<Tx>`.
///
/// Options:
///
/// - `key = "ship-order"`: the stable key; required.
/// - `retention = "7d"`: how long markers are kept; a number and one of `s m h d`.
/// - `timeout = "30s"`: how long one run may take.
/// - `missing_id = "reject"`, `"allow_unkeyed"` or `"content_hash"`: what to do with a message without a key.
/// - `selector = "message_id"`, `"correlation_id"`, `"idempotency_key"` or `"header:x-name"`: what tells
///   two messages apart.
#[proc_macro_attribute]
pub fn handler(options: TokenStream, item: TokenStream) -> TokenStream {
    match handler::expand(options.into(), item.clone().into()) {
        Ok(expansion) => expansion.into(),
        Err(error) => {
            // The function stays, so that the rest of the file still means
            // something to the compiler and the editor.
            let (error, item) = (error.into_compile_error(), proc_macro2::TokenStream::from(item));
            quote!(#item #error).into()
        }
    }
}
