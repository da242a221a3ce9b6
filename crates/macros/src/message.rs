//! `#[derive(Message)]`: a type's stable name, written out next to it.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, LitInt, LitStr, Member, Result, parse_quote};

use crate::option;

#[derive(Default)]
struct Options {
    name: Option<LitStr>,
    version: Option<u32>,
    key: Option<LitStr>,
    destination: Option<LitStr>,
}

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let options = Options::read(input)?;
    let Some(name) = options.name else {
        return Err(Error::new(
            input.ident.span(),
            "a message needs a stable name: #[message(name = \"order.placed.v1\")]",
        ));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new(lifetime.span(), "a message owns its data: it cannot have a lifetime"));
    }
    let version = options.version.map(|version| quote!(const VERSION: u32 = #version;));
    let destination = options.destination.map(|destination| {
        quote! {
            const DESTINATION: ::core::option::Option<&'static str> = ::core::option::Option::Some(#destination);
        }
    });
    let key = options.key.map(|key| key_method(input, &key)).transpose()?;
    let mut generics = input.generics.clone();
    if !generics.params.is_empty() {
        // Asked of the whole type: only serde's derive knows which parameters it needs what of.
        generics.make_where_clause().predicates.push(parse_quote! {
            Self: ::oncebox::__private::Serialize
                + ::oncebox::__private::DeserializeOwned
                + ::core::marker::Send
                + ::core::marker::Sync
                + 'static
        });
    }
    let ident = &input.ident;
    let (parameters, arguments, conditions) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters ::oncebox::Message for #ident #arguments #conditions {
            const NAME: &'static str = #name;
            #version
            #destination
            #key
        }
    })
}

impl Options {
    fn read(input: &DeriveInput) -> Result<Self> {
        let mut options = Self::default();
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("message")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("name") {
                    option::set(&mut options.name, &meta, option::name(&meta, "name")?)
                } else if meta.path.is_ident("version") {
                    let version: LitInt = meta.value()?.parse()?;
                    option::set(&mut options.version, &meta, checked_version(&version)?)
                } else if meta.path.is_ident("key") {
                    option::set(&mut options.key, &meta, meta.value()?.parse()?)
                } else if meta.path.is_ident("destination") {
                    option::set(&mut options.destination, &meta, option::name(&meta, "destination")?)
                } else {
                    Err(option::unknown(&meta, "name, version, key, destination"))
                }
            })?;
        }
        Ok(options)
    }
}

fn checked_version(version: &LitInt) -> Result<u32> {
    match version.base10_parse()? {
        0 => Err(Error::new(version.span(), "versions count from 1")),
        number => Ok(number),
    }
}

fn key_method(input: &DeriveInput, key: &LitStr) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(_) => {
            return Err(Error::new(
                key.span(),
                "an enum has no field that all its variants share: implement `Message::key` by hand",
            ));
        }
        Data::Union(_) => return Err(Error::new(key.span(), "a union cannot be a message")),
    };
    let Some((member, field)) = field_named(fields, &key.value()) else {
        return Err(Error::new(key.span(), format!("`{}` has no field `{}`", input.ident, key.value())));
    };
    // With the span of the field's type, which is what is wrong if it has no text.
    let text = quote_spanned!(field.ty.span()=> ::std::string::ToString::to_string(&self.#member));
    Ok(quote! {
        fn key(&self) -> ::core::option::Option<::std::borrow::Cow<'_, str>> {
            ::core::option::Option::Some(::std::borrow::Cow::Owned(#text))
        }
    })
}

/// The field of that name, or of that number in a tuple struct.
fn field_named<'f>(fields: &'f Fields, name: &str) -> Option<(Member, &'f Field)> {
    fields.members().zip(fields).find(|(member, _)| match member {
        Member::Named(ident) => ident.unraw() == name,
        Member::Unnamed(index) => index.to_token_stream().to_string() == name,
    })
}
