use oncebox::Message;

#[derive(Message)]
struct NoName;

#[derive(Message)]
#[message(name = "")]
struct EmptyName;

#[derive(Message)]
#[message(name = "two\nlines")]
struct ControlCharacter;

#[derive(Message)]
#[message(name = "a", topic = "orders")]
struct UnknownOption;

#[derive(Message)]
#[message(name = "a", name = "b")]
struct TwoNames;

#[derive(Message)]
#[message(name = "a", version = 0)]
struct VersionZero;

#[derive(Message)]
#[message(name = "a", key = "customer_id")]
struct NoSuchField {
    order_id: u64,
}

#[derive(Message)]
#[message(name = "a", key = "order_id")]
enum KeyedEnum {
    Placed { order_id: u64 },
}

#[derive(Message)]
#[message(name = "a")]
struct Borrowed<'a>(&'a str);

fn main() {}
