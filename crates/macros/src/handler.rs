//! `#[handler]`: an `async fn` becomes a unit struct that implements `Handler`.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, ItemFn, LitStr, PathArguments, Result, ReturnType, Signature,
    Type, TypeReference,
};

use crate::option;

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(item)
        .map_err(|error| Error::new(error.span(), format!("#[handler] stands on an async fn: {error}")))?;
    let shape = Shape::of(&function.sig)?;
    let options = Options::read(options)?;
    Ok(assemble(function, &shape, &options))
}

/// What the function's signature says.
struct Shape {
    tx: Type,
    message: Type,
    /// Whether it asked for the context rather than the bare connection.
    takes_context: bool,
}

impl Shape {
    fn of(signature: &Signature) -> Result<Self> {
        fn refuse<T>(at: impl ToTokens, text: &str) -> Result<T> {
            Err(Error::new_spanned(at, text))
        }
        if signature.asyncness.is_none() {
            return refuse(signature.fn_token, "a handler is async: write `async fn`");
        }
        if !signature.generics.params.is_empty() {
            return refuse(
                &signature.generics,
                "a handler has no generic parameters: name the connection, and elide lifetimes",
            );
        }
        if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
            return refuse(
                receiver,
                "a handler is a free function: to keep state in `self`, implement `Handler` by hand",
            );
        }
        let mut inputs = signature.inputs.iter();
        let (Some(FnArg::Typed(first)), Some(FnArg::Typed(message)), None) =
            (inputs.next(), inputs.next(), inputs.next())
        else {
            return refuse(
                &signature.ident,
                "a handler takes two parameters: `tx: &mut Tx` or `cx: &mut Context<'_, Tx>`, and the message",
            );
        };
        if let Type::Reference(reference) = &*message.ty {
            return refuse(reference, "a handler takes its message by value");
        }
        if matches!(signature.output, ReturnType::Default) {
            return refuse(&signature.ident, "a handler returns `Result<(), HandlerError>`");
        }
        let lent = match &*first.ty {
            Type::Reference(TypeReference { mutability: Some(_), elem, .. }) => &**elem,
            other => {
                return refuse(
                    other,
                    "the first parameter is lent: `tx: &mut Tx` or `cx: &mut Context<'_, Tx>`",
                );
            }
        };
        let of_context = context_argument(lent);
        let (takes_context, tx) = (of_context.is_some(), of_context.unwrap_or(lent).clone());
        Ok(Self { tx, message: (*message.ty).clone(), takes_context })
    }
}

/// `Tx`, if the type is written `Context<'_, Tx>`. An alias of it is not seen through.
fn context_argument(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|segment| segment.ident == "Context")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

/// What was chosen in the brackets.
struct Options {
    key: LitStr,
    /// Fields of `HandlerOptions`; what is left out keeps its default.
    fields: Vec<TokenStream>,
}

impl Options {
    fn read(tokens: TokenStream) -> Result<Self> {
        let (mut key, mut retention, mut timeout) = (None, None, None);
        let (mut missing_id, mut selector, mut mode) = (None, None, None);
        let (mut order, mut concurrency, mut legacy) = (None, None, Vec::new());
        let parser = syn::meta::parser(|meta| {
            if meta.path.is_ident("key") {
                option::set(&mut key, &meta, meta.value()?.parse()?)
            } else if meta.path.is_ident("retention") {
                option::set(&mut retention, &meta, option::duration(&meta)?)
            } else if meta.path.is_ident("timeout") {
                option::set(&mut timeout, &meta, option::duration(&meta)?)
            } else if meta.path.is_ident("missing_id") {
                option::set(&mut missing_id, &meta, missing_id_variant(&meta)?)
            } else if meta.path.is_ident("selector") {
                option::set(&mut selector, &meta, selector_variant(&meta)?)
            } else if meta.path.is_ident("mode") {
                option::set(&mut mode, &meta, mode_variant(&meta)?)
            } else if meta.path.is_ident("in_order") {
                option::set(&mut order, &meta, order_variant(&meta)?)
            } else if meta.path.is_ident("concurrency") {
                option::set(&mut concurrency, &meta, meta.value()?.parse::<syn::LitInt>()?)
            } else if meta.path.is_ident("legacy") {
                legacy.push(meta.value()?.parse::<LitStr>()?);
                Ok(())
            } else {
                let known =
                    "key, legacy, mode, retention, timeout, in_order, concurrency, missing_id, selector";
                Err(option::unknown(&meta, known))
            }
        });
        parser.parse2(tokens)?;
        let Some(key) = key else {
            return Err(Error::new(
                proc_macro2::Span::call_site(),
                "a handler needs a stable key: #[handler(key = \"ship-order\")]",
            ));
        };
        let retention = retention.map(length).map(|length| quote!(retention: #length));
        let timeout =
            timeout.map(length).map(|length| quote!(timeout: ::core::option::Option::Some(#length)));
        let missing_id = missing_id.map(|variant| quote!(missing_id: #variant));
        let selector = selector.map(|variant| quote!(selector: #variant));
        let mode = mode.map(|variant| quote!(mode: ::core::option::Option::Some(#variant)));
        let order = order.map(|variant| quote!(lanes: ::core::option::Option::Some(#variant)));
        let concurrency = concurrency.map(|count| quote!(concurrency: ::core::option::Option::Some(#count)));
        let legacy = (!legacy.is_empty()).then(|| {
            let keys = legacy.iter().map(|key| quote_spanned!(key.span()=> ::oncebox::HandlerKey::new(#key)));
            quote!(legacy: ::std::vec![#(const { #keys }),*])
        });
        let fields = [retention, timeout, missing_id, selector, mode, order, concurrency, legacy];
        let fields = fields.into_iter().flatten().collect();
        Ok(Self { key, fields })
    }
}

fn length(length: Duration) -> TokenStream {
    let seconds = length.as_secs();
    quote!(::core::time::Duration::from_secs(#seconds))
}

fn missing_id_variant(meta: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let (word, span) = option::word(meta)?;
    let variant = match word.as_str() {
        "reject" => "Reject",
        "allow_unkeyed" => "AllowUnkeyed",
        "content_hash" => "ContentHash",
        _ => return Err(Error::new(span, "expected one of reject, allow_unkeyed, content_hash")),
    };
    let variant = format_ident!("{variant}");
    Ok(quote!(::oncebox::MissingId::#variant))
}

fn mode_variant(meta: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let (word, span) = option::word(meta)?;
    match word.as_str() {
        "durable" => Ok(quote!(::oncebox::inbox::Mode::Durable)),
        "receiver" => Ok(quote!(::oncebox::inbox::Mode::Receiver)),
        _ => Err(Error::new(span, "expected one of durable, receiver")),
    }
}

fn order_variant(meta: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let (word, span) = option::word(meta)?;
    match word.as_str() {
        "block_key" => Ok(quote!(::oncebox::plan::OnDead::BlockKey)),
        "skip_key" => Ok(quote!(::oncebox::plan::OnDead::SkipKey)),
        _ => Err(Error::new(
            span,
            "expected one of block_key, skip_key: what a dead message does to those behind it",
        )),
    }
}

fn selector_variant(meta: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let (word, span) = option::word(meta)?;
    if let Some(header) = word.strip_prefix("header:").filter(|header| !header.is_empty()) {
        return Ok(quote!(::oncebox::KeySelector::Header(::std::string::String::from(#header))));
    }
    let variant = match word.as_str() {
        "message_id" => "MessageId",
        "correlation_id" => "CorrelationId",
        "idempotency_key" => "IdempotencyKey",
        _ => {
            let expected = "expected one of message_id, correlation_id, idempotency_key, header:x-name";
            return Err(Error::new(span, expected));
        }
    };
    let variant = format_ident!("{variant}");
    Ok(quote!(::oncebox::KeySelector::#variant))
}

fn assemble(mut function: ItemFn, shape: &Shape, options: &Options) -> TokenStream {
    let attributes = std::mem::take(&mut function.attrs);
    let on_struct = attributes.iter().filter(|attribute| describes_item(attribute));
    let on_impl = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    function.attrs = attributes.iter().filter(|attribute| describes_body(attribute)).cloned().collect();
    let visibility = std::mem::replace(&mut function.vis, syn::Visibility::Inherited);
    let (ident, Shape { tx, message, takes_context }) = (&function.sig.ident, shape);
    // With the span of the key, which is what is wrong if the constant does not evaluate.
    let key = &options.key;
    let key = quote_spanned!(key.span()=> ::oncebox::HandlerKey::new(#key));
    let lent = if *takes_context { quote!(cx) } else { quote!(cx.tx()) };
    // With the span of the return type, which is what is wrong if it is another one.
    let call = quote_spanned!(function.sig.output.span()=> #ident(#lent, message).await);
    // With the span of the message, which is what is wrong if the handler is more public than it.
    let taken = quote_spanned!(message.span()=> type Message = #message;);
    let chosen = options_method(options);

    quote! {
        #(#on_struct)*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #ident;

        #(#on_impl)*
        #[allow(deprecated)]
        impl ::oncebox::Handler<#tx> for #ident {
            #taken

            fn key(&self) -> ::oncebox::HandlerKey {
                const KEY: ::oncebox::HandlerKey = #key;
                KEY
            }

            #chosen

            async fn handle(
                &self,
                cx: &mut ::oncebox::Context<'_, #tx>,
                message: #message,
            ) -> ::core::result::Result<(), ::oncebox::HandlerError> {
                #function
                #call
            }
        }
    }
}

fn options_method(options: &Options) -> Option<TokenStream> {
    let fields = &options.fields;
    (!fields.is_empty()).then(|| {
        quote! {
            #[allow(clippy::needless_update)]
            fn options(&self) -> ::oncebox::HandlerOptions {
                ::oncebox::HandlerOptions { #(#fields,)* ..::core::default::Default::default() }
            }
        }
    })
}

/// Attributes that speak about the item as others see it.
fn describes_item(attribute: &Attribute) -> bool {
    ["doc", "cfg", "deprecated", "allow"].iter().any(|name| attribute.path().is_ident(name))
}

/// Attributes that speak about the code: lint levels, `#[tracing::instrument]` and the like.
fn describes_body(attribute: &Attribute) -> bool {
    !["doc", "cfg", "deprecated"].iter().any(|name| attribute.path().is_ident(name))
}
