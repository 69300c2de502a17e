# Makes phoenix.tsv, by plug_crypto 2.1 (what Phoenix.Token calls) on Erlang/OTP:
#
#     elixir -pa PLUG_CRYPTO/ebin phoenix.exs > phoenix.tsv
#
# Each line: a name; what the token means as JSON; whether signing that JSON has to make these very
# bytes; signed_at in seconds; max_age in seconds, or infinity; the token.
# Tests read the lines, and nothing here is run by them.
:ets.new(Plug.Crypto.Keys, [:named_table, :public])

secret = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR"
salt = "user socket"
at = 1_700_000_000

line = fn name, json, same, at, age, token ->
  IO.puts(Enum.join([name, json, same, at, age, token], "\t"))
end

signed = fn name, json, same, term ->
  line.(name, json, same, at, 86400, Plug.Crypto.sign(secret, salt, term, signed_at: at))
end

# As Erlang/OTP 26 and newer write terms, whichever this runs on.
key = Plug.Crypto.KeyGenerator.generate(secret, salt)
newer = fn name, json, same, term ->
  payload = :erlang.term_to_binary({term, at * 1000, 86400}, minor_version: 2)
  line.(name, json, same, at, 86400, Plug.Crypto.MessageVerifier.sign(payload, key))
end

signed.("small integer", "42", "same", 42)
signed.("integer", "70000", "same", 70000)
signed.("negative", "-1", "same", -1)
signed.("largest of 32 bits", "2147483647", "same", 2_147_483_647)
signed.("more than 32 bits", "2147483648", "same", 2_147_483_648)
signed.("less than -32 bits", "-2147483649", "same", -2_147_483_649)
signed.("largest of 64 bits", "18446744073709551615", "same", 18_446_744_073_709_551_615)
signed.("least of 64 bits", "-9223372036854775808", "same", -9_223_372_036_854_775_808)
signed.("float", "1.5", "same", 1.5)
signed.("text", ~s("user:1"), "same", "user:1")
signed.("accents", ~s("Zoë"), "same", "Zoë")
signed.("empty text", ~s(""), "same", "")
signed.("empty list", "[]", "same", [])
signed.("list of bytes", "[1,2,255]", "same", [1, 2, 255])
signed.("list of integers", "[1,2,256]", "same", [1, 2, 256])
signed.("list of texts", ~s(["a","b"]), "same", ["a", "b"])
signed.("map", ~s({"role":"admin","user_id":42}), "same", %{"user_id" => 42, "role" => "admin"})
signed.("map in map", ~s({"a":{"b":[1.25,"c"]}}), "same", %{"a" => %{"b" => [1.25, "c"]}})
signed.("empty map", "{}", "same", %{})
signed.("charlist", "[104,105]", "same", 'hi')
signed.("atoms as keys", ~s({"role":"admin","user_id":42}), "other", %{user_id: 42, role: :admin})
signed.("integers as keys", ~s({"1":"a","-7":"b"}), "other", %{1 => "a", -7 => "b"})
signed.("tuple", ~s(["ok",7]), "other", {:ok, 7})
signed.("keywords", ~s([["id",1],["name","x"]]), "other", [id: 1, name: "x"])
signed.("many keys", Enum.map_join(Enum.sort(Enum.map(1..40, &to_string/1)), ",", &~s("#{&1}":#{&1})) |> then(&"{#{&1}}"), "other", Map.new(1..40, &{to_string(&1), &1}))
signed.("nil of older OTP", "null", "other", nil)
signed.("true of older OTP", "true", "other", true)
newer.("nil", "null", "same", nil)
newer.("booleans", "[true,false]", "same", [true, false])
newer.("atom", ~s("admin"), "other", :admin)
newer.("atom beyond ASCII", ~s("größe"), "other", :größe)

line.("for ever", "42", "other", at, "infinity",
  Plug.Crypto.sign(secret, salt, 42, signed_at: at, max_age: :infinity))
line.("half a second more", "42", "same", at, "1.5",
  Plug.Crypto.sign(secret, salt, 42, signed_at: at, max_age: 1.5))
line.("an hour", "42", "same", at, "3600",
  Plug.Crypto.sign(secret, salt, 42, signed_at: at, max_age: 3600))
line.("sha384", "42", "other", at, "86400",
  Plug.Crypto.MessageVerifier.sign(:erlang.term_to_binary({42, at * 1000, 86400}), key, :sha384))
line.("sha512", "42", "other", at, "86400",
  Plug.Crypto.MessageVerifier.sign(:erlang.term_to_binary({42, at * 1000, 86400}), key, :sha512))
line.("plug_crypto 1.1", "42", "other", at, "86400",
  Plug.Crypto.MessageVerifier.sign(:erlang.term_to_binary({42, at * 1000}), key))
line.("Phoenix 1.4", "42", "other", at, "86400",
  Plug.Crypto.MessageVerifier.sign(:erlang.term_to_binary(%{data: 42, signed: at * 1000}), key))

options = [key_iterations: 1, key_length: 64, key_digest: :sha512]
line.("options", "42", "other", at, "86400", Plug.Crypto.sign(secret, salt, 42, [signed_at: at] ++ options))

# Signed by the right key, and refused.
refused = fn name, term -> line.(name, "refused", "other", at, 86400, Plug.Crypto.sign(secret, salt, term, signed_at: at)) end
refused.("more than 64 bits", 18_446_744_073_709_551_616)
refused.("less than -64 bits", -9_223_372_036_854_775_809)
refused.("bytes", <<255, 254>>)
refused.("bits", <<1::3>>)
refused.("process", self())
refused.("reference", make_ref())
refused.("function", &String.length/1)
refused.("improper", [1 | 2])
refused.("float as key", %{1.5 => 1})
refused.("same key twice", %{:a => 1, "a" => 2})
refused.("deep", Enum.reduce(1..40, 1, fn _, inner -> [inner] end))
for {name, term} <- [{"compressed", nil}, {"no tuple", 42}, {"list in place of tuple", [42, at * 1000, 86400]}, {"four", {1, 2, 3, 4}}, {"time of text", {42, "now", 86400}}] do
  payload =
    case name do
      "compressed" -> :erlang.term_to_binary({String.duplicate("a", 1000), at * 1000, 86400}, [:compressed])
      _ -> :erlang.term_to_binary(term)
    end
  line.(name, "refused", "other", at, 86400, Plug.Crypto.MessageVerifier.sign(payload, key))
end
line.("encrypted", "refused", "other", at, 86400, Plug.Crypto.encrypt(secret, salt, 42, signed_at: at))
