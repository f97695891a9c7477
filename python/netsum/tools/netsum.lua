-- netsum's protocols panama, atp and switchml for Wireshark and tshark, as Lua 5.2 or later (Wireshark 3.6 or later).
--
-- `netsum tools wireshark` installs this file. docs/wireshark.md says what it shows, docs/protocol-*.md describe the
-- packets. The checks of a packet are those of the decoders in crates/wire, in the same order, with the same reasons.

local netsum = Proto("netsum", "netsum: sums inside the network")

netsum.prefs.ports = Pref.range("UDP ports", "7701,7801", "UDP ports of switches and servers", 65535)
netsum.prefs.any_port = Pref.bool("Look at all UDP ports", true, "Recognise packets on other ports by their contents")
netsum.prefs.trains = Pref.bool("Split trains", true, "Packets that a system sends or receives as one (UDP_SEGMENT)")
netsum.prefs.keys = Pref.string("File of keys", "", "Keys of jobs, to verify tags; `netsum tools keys` writes it")

-- Bits. Wireshark has Lua 5.2 with bit32, or 5.4 with operators, which would be errors of syntax to the former.

local bits = bit32
if not bits then
  bits = load([[return {
    band = function(a, b) return a & b end,
    bxor = function(a, b, c, d, e) return (a ~ b ~ (c or 0) ~ (d or 0) ~ (e or 0)) & 0xffffffff end,
    lshift = function(a, n) return (a << n) & 0xffffffff end,
    rshift = function(a, n) return a >> n end,
    bnot = function(a) return ~a & 0xffffffff end,
  }]])()
end
local band, bxor, lshift, rshift, bnot = bits.band, bits.bxor, bits.lshift, bits.rshift, bits.bnot
local byte, char, format, rep, sub = string.byte, string.char, string.format, string.rep, string.sub
local WORD = 4294967296

local function be32(bytes, at)
  local a, b, c, d = byte(bytes, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function le32(bytes, at)
  local a, b, c, d = byte(bytes, at, at + 3)
  return ((d * 256 + c) * 256 + b) * 256 + a
end

local function be(value, size)
  local out = {}
  for i = size, 1, -1 do
    out[i] = char(value % 256)
    value = (value - value % 256) / 256
  end
  return table.concat(out)
end

local function from_hex(text)
  return (text:gsub("..", function(digits) return char(tonumber(digits, 16)) end))
end

-- SipHash-2-4 (Aumasson and Bernstein, 2012). A word of 64 bits is two numbers, the high half first.

local function add(ah, al, bh, bl)
  local low, high = al + bl, ah + bh
  if low >= WORD then
    low, high = low - WORD, high + 1
  end
  return high % WORD, low
end

local function rotate(h, l, n)
  local m = 32 - n
  return bxor(lshift(h, n), rshift(l, m)), bxor(lshift(l, n), rshift(h, m))
end

local function sip_round(v)
  local ah, al = add(v[1], v[2], v[3], v[4])
  local bh, bl = rotate(v[3], v[4], 13)
  bh, bl = bxor(bh, ah), bxor(bl, al)
  ah, al = al, ah
  local ch, cl = add(v[5], v[6], v[7], v[8])
  local dh, dl = rotate(v[7], v[8], 16)
  dh, dl = bxor(dh, ch), bxor(dl, cl)
  ah, al = add(ah, al, dh, dl)
  dh, dl = rotate(dh, dl, 21)
  dh, dl = bxor(dh, ah), bxor(dl, al)
  ch, cl = add(ch, cl, bh, bl)
  bh, bl = rotate(bh, bl, 17)
  v[1], v[2], v[3], v[4] = ah, al, bxor(bh, ch), bxor(bl, cl)
  v[5], v[6], v[7], v[8] = cl, ch, dh, dl
end

local function sip_hash(key, message)
  local k0l, k0h, k1l, k1h = le32(key, 1), le32(key, 5), le32(key, 9), le32(key, 13)
  -- v0, v1, v2, v3 are v[1..2], v[3..4], v[5..6], v[7..8].
  local v = {
    bxor(k0h, 0x736f6d65), bxor(k0l, 0x70736575), bxor(k1h, 0x646f7261), bxor(k1l, 0x6e646f6d),
    bxor(k0h, 0x6c796765), bxor(k0l, 0x6e657261), bxor(k1h, 0x74656462), bxor(k1l, 0x79746573),
  }
  local length = #message
  local padded = message .. rep("\0", 7 - length % 8) .. char(length % 256)
  for at = 1, #padded, 8 do
    local low, high = le32(padded, at), le32(padded, at + 4)
    v[7], v[8] = bxor(v[7], high), bxor(v[8], low)
    sip_round(v)
    sip_round(v)
    v[1], v[2] = bxor(v[1], high), bxor(v[2], low)
  end
  v[6] = bxor(v[6], 0xff)
  for _ = 1, 4 do
    sip_round(v)
  end
  return format("%08x%08x", bxor(v[1], v[3], v[5], v[7]), bxor(v[2], v[4], v[6], v[8]))
end

-- AEGIS-128L as a MAC (draft-irtf-cfrg-aegis-aead, section 5.4) on tables of AES. A block is four words of a state.

local T0, T1, T2, T3 = {}, {}, {}, {}

local function double(value)
  local doubled = value * 2
  return doubled > 255 and bxor(doubled - 256, 0x1b) or doubled
end

-- The powers of 3 are all values but 0, so that the inverse of 3^n is 3^(255 - n).
local function make_tables()
  local power, value = {}, 1
  for n = 0, 254 do
    power[n] = value
    value = bxor(value, double(value))
  end
  local box = { [0] = 0x63 }
  for n = 0, 254 do
    local inverse = power[(255 - n) % 255]
    local turned = inverse * 257
    local mixed = bxor(turned, rshift(turned, 7), rshift(turned, 6), rshift(turned, 5), rshift(turned, 4))
    box[power[n]] = bxor(band(mixed, 0xff), 0x63)
  end
  for x = 0, 255 do
    local s = box[x]
    local s2 = double(s)
    local s3 = bxor(s2, s)
    T0[x] = ((s2 * 256 + s) * 256 + s) * 256 + s3
    T1[x] = ((s3 * 256 + s2) * 256 + s) * 256 + s
    T2[x] = ((s * 256 + s3) * 256 + s2) * 256 + s
    T3[x] = ((s * 256 + s) * 256 + s3) * 256 + s2
  end
end

make_tables()

-- One round of AES on the block of `s` that begins at `i`, with the block at `j` as the round's key, into `out`.
local function aes_round(s, i, j, out)
  local a, b, c, d = s[i], s[i + 1], s[i + 2], s[i + 3]
  local a0, a1, a2, a3 = rshift(a, 24), band(rshift(a, 16), 255), band(rshift(a, 8), 255), band(a, 255)
  local b0, b1, b2, b3 = rshift(b, 24), band(rshift(b, 16), 255), band(rshift(b, 8), 255), band(b, 255)
  local c0, c1, c2, c3 = rshift(c, 24), band(rshift(c, 16), 255), band(rshift(c, 8), 255), band(c, 255)
  local d0, d1, d2, d3 = rshift(d, 24), band(rshift(d, 16), 255), band(rshift(d, 8), 255), band(d, 255)
  out[j] = bxor(T0[a0], T1[b1], T2[c2], T3[d3], s[j])
  out[j + 1] = bxor(T0[b0], T1[c1], T2[d2], T3[a3], s[j + 1])
  out[j + 2] = bxor(T0[c0], T1[d1], T2[a2], T3[b3], s[j + 2])
  out[j + 3] = bxor(T0[d0], T1[a1], T2[b2], T3[c3], s[j + 3])
end

-- The state is eight blocks, words 1 to 32; `m` has the eight words of two blocks from `at` on.
local function aegis_update(s, m, at)
  local out = {}
  for i = 1, 25, 4 do
    aes_round(s, i, i + 4, out)
  end
  aes_round(s, 29, 1, out)
  for i = 0, 3 do
    out[1 + i] = bxor(out[1 + i], m[at + i])
    out[17 + i] = bxor(out[17 + i], m[at + 4 + i])
  end
  return out
end

local function words(bytes)
  local out = {}
  for at = 1, #bytes, 4 do
    out[#out + 1] = be32(bytes, at)
  end
  return out
end

local C0 = words(from_hex("000101020305080d1522375990e97962"))
local C1 = words(from_hex("db3d18556dc22ff12011314273b528dd"))
local aegis_states = {}

-- The state after the key and the nonce.
local function aegis_begin(key, nonce)
  local k, n, s = words(key), words(nonce), {}
  for i = 1, 4 do
    local both = bxor(k[i], n[i])
    s[i], s[4 + i], s[8 + i], s[12 + i], s[16 + i] = both, C1[i], C0[i], C1[i], both
    s[20 + i], s[24 + i], s[28 + i] = bxor(k[i], C0[i]), bxor(k[i], C1[i]), bxor(k[i], C0[i])
  end
  local m = { n[1], n[2], n[3], n[4], k[1], k[2], k[3], k[4] }
  for _ = 1, 10 do
    s = aegis_update(s, m, 1)
  end
  return s
end

local function aegis_absorb(s, message)
  local m = words(message .. rep("\0", -#message % 32))
  for at = 1, #m, 8 do
    s = aegis_update(s, m, at)
  end
  return s
end

-- The tag as four words, from two lengths in bytes.
local function aegis_end(s, first, second)
  -- Each in bits, as 64 bits, little-endian.
  local function little(bytes) return be32(be(bytes * 8, 4):reverse(), 1) end
  local sizes = { little(first), 0, little(second), 0 }
  local t = {}
  for i = 1, 4 do
    t[i] = bxor(sizes[i], s[8 + i])
    t[4 + i] = t[i]
  end
  for _ = 1, 7 do
    s = aegis_update(s, t, 1)
  end
  local function all(i) return bxor(bxor(s[i], s[4 + i], s[8 + i], s[12 + i]), s[16 + i], s[20 + i], s[24 + i]) end
  return all(1), all(2), all(3), all(4)
end

local function aegis_mac(key, message)
  -- The nonce is zero, so the state after it is the same for all messages.
  aegis_states[key] = aegis_states[key] or aegis_begin(key, rep("\0", 16))
  local first, second = aegis_end(aegis_absorb(aegis_states[key], message), #message, 16)
  return format("%08x%08x", first, second)
end

-- The tag of an encrypted message with associated data; the message itself is decrypted for that alone.
local function aegis_aead(key, nonce, associated, text)
  local s = aegis_absorb(aegis_begin(key, nonce), associated)
  local m = words(text .. rep("\0", -#text % 32))
  for at = 1, #m, 8 do
    local plain = {}
    for i = 1, 4 do
      plain[i] = bxor(m[at + i - 1], s[24 + i], s[4 + i], band(s[8 + i], s[12 + i]))
      plain[4 + i] = bxor(m[at + i + 3], s[8 + i], s[20 + i], band(s[24 + i], s[28 + i]))
    end
    -- Of the last block, what is beyond the message is zero.
    local left = #text - 4 * (at - 1)
    for i = 1, 8 do
      local bytes = math.max(0, math.min(4, left - 4 * (i - 1)))
      plain[i] = bytes == 4 and plain[i] or plain[i] - plain[i] % 2 ^ (8 * (4 - bytes))
    end
    s = aegis_update(s, plain, 1)
  end
  return format("%08x%08x%08x%08x", aegis_end(s, #associated, #text))
end

-- SHA-256 (FIPS 180-4), HMAC (RFC 2104) and HKDF (RFC 5869), for the keys of hops.

local SHA_K, SHA_H = {}, {}

-- First 32 bits of the fractional parts of the roots of primes: doubles have enough of them.
local function make_constants()
  local function fraction(x) return math.floor((x - math.floor(x)) * WORD) end
  local prime = 2
  while #SHA_K < 64 do
    local is_prime = true
    for d = 2, math.floor(math.sqrt(prime)) do
      is_prime = is_prime and prime % d ~= 0
    end
    if is_prime then
      SHA_K[#SHA_K + 1] = fraction(prime ^ (1 / 3))
      if #SHA_H < 8 then
        SHA_H[#SHA_H + 1] = fraction(math.sqrt(prime))
      end
    end
    prime = prime + 1
  end
end

make_constants()

local function turn(x, n) return bxor(rshift(x, n), lshift(x, 32 - n)) end

local function sha_block(h, w)
  for i = 17, 64 do
    local x, y = w[i - 15], w[i - 2]
    local s0 = bxor(turn(x, 7), turn(x, 18), rshift(x, 3))
    local s1 = bxor(turn(y, 17), turn(y, 19), rshift(y, 10))
    w[i] = (w[i - 16] + s0 + w[i - 7] + s1) % WORD
  end
  local a, b, c, d, e, f, g, x = h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8]
  for i = 1, 64 do
    local choice = bxor(band(e, f), band(bnot(e), g))
    local t1 = x + bxor(turn(e, 6), turn(e, 11), turn(e, 25)) + choice + SHA_K[i] + w[i]
    local majority = bxor(band(a, b), band(a, c), band(b, c))
    local t2 = bxor(turn(a, 2), turn(a, 13), turn(a, 22)) + majority
    x, g, f, e, d, c, b, a = g, f, e, (d + t1) % WORD, c, b, a, (t1 + t2) % WORD
  end
  for i, value in ipairs({ a, b, c, d, e, f, g, x }) do
    h[i] = (h[i] + value) % WORD
  end
end

local function sha256(message)
  local padded = message .. "\128" .. rep("\0", (55 - #message) % 64) .. be(#message * 8, 8)
  local h = {}
  for i = 1, 8 do
    h[i] = SHA_H[i]
  end
  for at = 1, #padded, 64 do
    sha_block(h, words(sub(padded, at, at + 63)))
  end
  local out = {}
  for i = 1, 8 do
    out[i] = be(h[i], 4)
  end
  return table.concat(out)
end

local function hmac(key, message)
  local function padded(with)
    return (key .. rep("\0", 64 - #key)):gsub(".", function(c) return char(bxor(byte(c), with)) end)
  end
  -- Only the first value of gsub.
  local outer, inner = (padded(0x5c)), (padded(0x36))
  return sha256(outer .. sha256(inner .. message))
end

-- One block of HKDF without salt; `info` without the code of the MAC.
local function expand(mac, secret, info, size)
  local extracted = hmac(rep("\0", 32), secret)
  return sub(hmac(extracted, info .. char(mac) .. "\1"), 1, size)
end

-- Keys.

local SIP_HASH, AEGIS, AEGIS_AEAD = 0, 1, 3
local MAC_NAMES =
  { [SIP_HASH] = "SipHash-2-4", [AEGIS] = "AEGIS-128L", [AEGIS_AEAD] = "AEGIS-128L, encrypted" }
-- Jobs by number: { mac, key, ranks, switches }; hops by "job/epoch/tree": a list of { mac, up, down, name }.
local jobs, hops = {}, {}

local function new_hop(mac, secret, name)
  return { mac = mac, up = sub(secret, 1, 16), down = sub(secret, 17, 32), name = name }
end

-- "job JOB KEY RANKS [SWITCH…]", as `netsum tools keys` writes it; KEY has the MAC's code in front.
local function read_job(rest)
  local job, mac, key, ranks, names = rest:match("^(%d+) 0([013])(%x+) (%d+)(.*)$")
  if not job or #key ~= 32 then
    return false
  end
  local switches = {}
  for name in names:gmatch("%S+") do
    switches[#switches + 1] = name
  end
  jobs[tonumber(job)] =
    { mac = tonumber(mac), key = from_hex(key), ranks = tonumber(ranks), switches = switches }
  return true
end

-- "hop JOB EPOCH TREE KEYS": both keys of one hop, with the MAC's code in front.
local function read_hop(rest)
  local job, epoch, tree, mac, keys = rest:match("^(%d+) (%d+) (%d+) 0([013])(%x+)$")
  if not job or #keys ~= 64 then
    return false
  end
  local id = format("%d/%d/%d", tonumber(job), tonumber(epoch), tonumber(tree))
  hops[id] = hops[id] or {}
  table.insert(hops[id], new_hop(tonumber(mac), from_hex(keys), "hop " .. #hops[id]))
  return true
end

local function read_keys(path)
  jobs, hops = {}, {}
  if path == "" then
    return
  end
  local file, reason = io.open(path)
  if not file then
    report_failure("netsum: the file of keys cannot be read: " .. reason)
    return
  end
  local number = 0
  for line in file:lines() do
    number = number + 1
    local what, rest = line:match("^(%a+) (.-)%s*$")
    local understood = (what == "job" and read_job(rest)) or (what == "hop" and read_hop(rest))
    if not understood and not line:match("^%s*$") and not line:match("^#") then
      report_failure(format("netsum: %s, line %d is neither a job's key nor a hop's", path, number))
    end
  end
  file:close()
end

-- All hops of a tree in an epoch: those of the file, and those that follow from the job's key.
local function hops_of(p)
  local id = format("%d/%d/%d", p.job, p.epoch, p.tree)
  local job = jobs[p.job]
  if not hops[id] or (job and not hops[id].derived) then
    local list = hops[id] or {}
    for rank = 0, job and job.ranks - 1 or -1 do
      local key = expand(job.mac, job.key, "netsum 1 rank " .. be(rank, 4), 16)
      local secret = expand(job.mac, key, "netsum 1 hop " .. be(p.epoch, 2) .. char(p.tree), 32)
      table.insert(list, new_hop(job.mac, secret, "rank " .. rank))
    end
    for _, name in ipairs(job and job.switches or {}) do
      local secret = expand(job.mac, job.key, "netsum 1 switch " .. be(p.epoch, 2) .. char(p.tree) .. name, 32)
      table.insert(list, new_hop(job.mac, secret, name))
    end
    list.derived = job ~= nil
    hops[id] = list
  end
  return hops[id]
end

local function tag_of(mac, key, p)
  if mac == AEGIS_AEAD then
    local nonce = p.bytes:sub(39, 46) .. rep("\0", 8)
    return aegis_aead(key, nonce, p.bytes:sub(1, 46), p.bytes:sub(55, -9))
  end
  local message = p.bytes:sub(1, 46) .. rep("\0", 18) .. p.bytes:sub(55)
  return mac == AEGIS and aegis_mac(key, message) or sip_hash(key, message)
end

-- The hop by "source>destination/job/epoch/tree" that was found last, which is tried first.
local hop_of_flow = {}

local function opens(hop, p)
  if p.encrypted ~= (hop.mac == AEGIS_AEAD) then
    return false
  end
  local expected = format("%08x%08x", be32(p.bytes, 47), be32(p.bytes, 51))
  if p.encrypted then
    local rest = #p.bytes - 7
    expected = expected .. format("%08x%08x", be32(p.bytes, rest), be32(p.bytes, rest + 4))
  end
  for _, way in ipairs(p.way and { p.way } or { "up", "down" }) do
    if tag_of(hop.mac, hop[way], p) == expected then
      return true
    end
  end
  return false
end

-- "verified" and the hop, "bad", or "no key".
local function verify(p)
  local flow = format("%s>%s/%d/%d/%d", p.from, p.to, p.job, p.epoch, p.tree)
  local usual, all = hop_of_flow[flow], hops_of(p)
  if usual and opens(usual, p) then
    return "verified", usual
  end
  for _, hop in ipairs(all) do
    if hop ~= usual and opens(hop, p) then
      hop_of_flow[flow] = hop
      return "verified", hop
    end
  end
  return #all > 0 and "bad" or "no key"
end

-- Decoders. `p` gets the fields; the result is the reason of a malformed packet, or nil.

local TRUNCATED, VERSION = "truncated header", "unknown protocol version"
local KIND, FORMAT = "unknown kind or flag", "unknown or unsupported number format"
local LENGTH, EMPTY = "payload length does not match the header", "empty fragment"
local RESERVED, MEMBERS = "reserved field is not zero", "impossible bitmap or fan-in"
local CUT = "cut short by the capture"

local PANAMA = { [0] = "contribution", "partial", "result", "waiting", "mismatch", "acknowledgement", "fin", "empties" }
local PARTIES = { [0] = "all", "to one", "from one", "nobody" }
local ATP = {
  [0] = "contribution",
  "result",
  "waiting",
  "float request",
  "mismatch",
  "fin",
  "ready",
  "done",
  "missing",
}
local SWITCHML = { [0] = "contribution", "result", "mismatch", "fin", "ready", "done" }
local DTYPES = {
  [0] = "float32", "float16", "bfloat16", "int32", "int64",
  [6] = "int8", [10] = "int16_from_int8", [11] = "bfloat16_from_e4m3", [12] = "bfloat16_from_e5m2",
}
-- Of an element in a buffer, in a partial, and in a contribution.
local RESULT_BYTES = { [0] = 4, 2, 2, 4, 8, [6] = 1, [10] = 2, [11] = 2, [12] = 2 }
local PARTIAL_BYTES = { [0] = 4, 4, 4, 4, 8, [6] = 1, [10] = 2, [11] = 4, [12] = 4 }
local CONTRIBUTION_BYTES = { [0] = 4, 2, 2, 4, 8, [6] = 1, [10] = 1, [11] = 1, [12] = 1 }
local OPERATIONS = { [0] = "sum", "min", "max" }
local ARITHMETIC = { [0] = "saturating", "wrapping", "min", "max", "float" }
local UP =
  { contribution = true, partial = true, acknowledgement = true, fin = true, empties = true, ready = true }
local SEALED_HEADER = 54

local function bit_of(value, mask) return band(value, mask) ~= 0 end

local function u8(p, at) return p.range(at, 1):uint() end
local function u16(p, at) return p.range(at, 2):uint() end
local function u32(p, at) return p.range(at, 4):uint() end
local function zero(p, at, count) return p.range(at, count):bytes():tohex():match("^0*$") ~= nil end

-- Who contributes and takes; false if flags and kind do not go together.
local function decode_parties(p, carries)
  local rank, flags = u8(p, 34), u8(p, 35)
  p.parties = PARTIES[band(flags, 0x0f)]
  p.empty, p.asks = bit_of(flags, 0x10), bit_of(flags, 0x20)
  p.has_others = bit_of(flags, 0x40)
  if not p.parties or bit_of(flags, 0x80) or not zero(p, 36, 2) then
    return false
  end
  local one = p.parties == "to one" or p.parties == "from one"
  if rank >= 64 or (rank > 0 and not one) then
    return false
  end
  if p.empty and (not carries or p.parties == "all" or (p.parties == "to one" and p.kind ~= "result")) then
    return false
  end
  if p.parties == "nobody" and carries and not p.empty then
    return false
  end
  if p.has_others ~= (p.has_others and not zero(p, 26, 8)) or (p.kind == "empties" and not p.has_others) then
    return false
  end
  if p.has_others and not carries and p.kind ~= "empties" then
    return false
  end
  return not p.asks or p.kind == "contribution" or p.kind == "partial"
end

local function decode_panama(p)
  local code, kind = u8(p, 3), u8(p, 1)
  p.kind = PANAMA[band(kind, 0x0f)]
  p.resent, p.congested_down = bit_of(kind, 0x10), bit_of(kind, 0x20)
  if not p.kind or bit_of(kind, 0xc0) then
    return KIND
  end
  p.dtype, p.operation = DTYPES[rshift(code, 4)], OPERATIONS[band(code, 15)]
  if not p.dtype or not p.operation then
    return FORMAT
  end
  local has_payload = p.kind == "contribution" or p.kind == "partial" or p.kind == "result"
  if not decode_parties(p, has_payload) then
    return RESERVED
  end
  has_payload = has_payload and not p.empty
  p.vid, p.cap, p.elements = u32(p, 8), u16(p, 18), u16(p, 20)
  if has_payload and p.elements == 0 then
    return EMPTY
  end
  local sizes = RESULT_BYTES
  if p.kind == "partial" and p.parties ~= "from one" then
    sizes = PARTIAL_BYTES
  elseif p.kind == "contribution" and p.parties ~= "from one" then
    sizes = CONTRIBUTION_BYTES
  end
  p.payload = has_payload and p.elements * sizes[rshift(code, 4)] or 0
  return p.size - p.header - p.trailer ~= p.payload and LENGTH or nil
end

local function in_fan(count, members)
  return count >= 1 and count <= 32 and (count == 32 or members < 2 ^ count)
end

local function ones(value)
  local count = 0
  while value > 0 do
    count, value = count + value % 2, (value - value % 2) / 2
  end
  return count
end

local function members_are_possible(p)
  local workers, racks = u32(p, 26), u32(p, 30)
  if not UP[p.kind] then
    return true
  end
  if not in_fan(u8(p, 21), racks) or racks == 0 then
    return false
  end
  if ones(racks) == 1 then
    return workers ~= 0 and in_fan(u8(p, 20), workers)
  end
  return workers == 0 and p.level == "server"
end

-- Who contributes and who takes, in packets to slots; false if the kind cannot have it.
local function decode_parties_of_slots(p, code, rank)
  p.parties = PARTIES[code]
  local one = p.parties == "to one" or p.parties == "from one"
  if not p.parties or rank >= 64 or (rank > 0 and not one) then
    return false
  elseif p.kind == "contribution" then
    return p.parties ~= "nobody"
  elseif p.kind == "ready" then
    return p.parties == "from one" or p.parties == "nobody"
  end
  return p.parties == "all"
end

local function decode_atp(p)
  local kind, code = u8(p, 1), u8(p, 2)
  p.kind, p.level = ATP[band(kind, 0x0f)], bit_of(kind, 0x10) and "server" or "rack"
  p.resent, p.collision = bit_of(code, 1), bit_of(code, 2)
  p.overflow, p.ecn = bit_of(code, 4), bit_of(code, 8)
  if not p.sealed and not zero(p, 38, 8) then
    return RESERVED
  end
  if not p.kind or bit_of(kind, 0xe0) then
    return KIND
  end
  p.arithmetic = ARITHMETIC[rshift(code, 4)]
  if not p.arithmetic then
    return FORMAT
  end
  if UP[p.kind] and not (decode_parties_of_slots(p, u8(p, 35), u8(p, 34)) and zero(p, 36, 2)) then
    return RESERVED
  end
  p.sequence, p.elements = u32(p, 8), u16(p, 18)
  local has_payload = p.kind == "contribution" or p.kind == "result"
  p.payload = has_payload and p.elements * 4 or 0
  if p.size - p.header - p.trailer ~= p.payload then
    return LENGTH
  elseif has_payload and p.elements == 0 then
    return EMPTY
  end
  return not members_are_possible(p) and MEMBERS or nil
end

local function decode_switchml(p)
  local kind, code = u8(p, 1), u8(p, 2)
  p.kind, p.resent = SWITCHML[band(kind, 0x0f)], bit_of(kind, 0x10)
  if not p.kind or bit_of(kind, 0xe0) then
    return KIND
  end
  p.arithmetic = code < 4 and ARITHMETIC[code] or nil
  if not p.arithmetic then
    return FORMAT
  end
  p.round, p.slot, p.elements = u32(p, 8), u16(p, 18), u16(p, 20)
  if not decode_parties_of_slots(p, u8(p, 25), u8(p, 26)) or not zero(p, 27, 11) then
    return RESERVED
  end
  local has_payload = p.kind == "contribution" or p.kind == "result"
  p.payload = has_payload and p.elements * 4 or 0
  return p.size - p.header - p.trailer ~= p.payload and LENGTH or nil
end

-- By first byte: name, bytes of the header, decoder, place of the tree.
local PROTOCOLS = {
  [0x11] = { "panama", 38, decode_panama, 2 },
  [0x12] = { "panama", SEALED_HEADER, decode_panama, 2 },
  [0x13] = { "panama", SEALED_HEADER, decode_panama, 2 },
  [0x21] = { "atp", 46, decode_atp, 3 },
  [0x22] = { "atp", SEALED_HEADER, decode_atp, 3 },
  [0x23] = { "atp", SEALED_HEADER, decode_atp, 3 },
  [0x31] = { "switchml", 38, decode_switchml, 24 },
  [0x32] = { "switchml", SEALED_HEADER, decode_switchml, 24 },
  [0x33] = { "switchml", SEALED_HEADER, decode_switchml, 24 },
}

-- A packet of `range`, decoded as far as it is well-formed; `malformed` is the reason why it is not. `size`: its bytes
-- on the network, of which a capture may have kept fewer.
local function decode(range, size)
  local p = { range = range, size = size or range:len() }
  p.version = p.size > 0 and u8(p, 0) or 0
  local known = PROTOCOLS[p.version]
  if not known then
    p.malformed = VERSION
    return p
  end
  local decoder, tree
  p.protocol, p.header, decoder, tree = known[1], known[2], known[3], known[4]
  p.encrypted = p.version % 16 == 3
  p.sealed = p.version % 16 == 2 or p.encrypted
  -- The second half of the tag.
  p.trailer = p.encrypted and 8 or 0
  if p.size < p.header + p.trailer then
    p.malformed = TRUNCATED
    return p
  elseif range:len() < p.header then
    p.malformed = CUT
    return p
  end
  p.job, p.epoch, p.tree = u32(p, 4), u16(p, 16), tree and u8(p, tree) or 0
  p.malformed = decoder(p)
  if p.kind then
    -- Mismatches of panama travel both ways.
    p.way = UP[p.kind] and "up" or (not (p.protocol == "panama" and p.kind == "mismatch") and "down") or nil
  end
  return p
end

-- Bytes of the first packet of a train, by its header; nil: there is no train.
local function first_of_train(range)
  local p = decode(range)
  if p.malformed == LENGTH and p.header + p.payload + p.trailer < p.size then
    return p.header + p.payload + p.trailer
  end
end

-- A datagram of `size` bytes of which the capture has the first. Of a train this is its first packet.
local function cut_packet(range, size)
  local p = decode(range, size)
  local length = p.malformed == LENGTH and p.header + p.payload + p.trailer
  if not netsum.prefs.trains or not length or length >= size then
    return p
  end
  local first = decode(range(0, math.min(length, range:len())), length)
  first.unseen = math.ceil(size / length) - 1
  return first
end

-- The packets of a datagram. Those of a train have one length, except the last, which may be shorter.
local function packets_of(tvb)
  local range = tvb:range()
  if tvb:len() < tvb:reported_len() then
    return { cut_packet(range, tvb:reported_len()) }
  end
  local length = netsum.prefs.trains and first_of_train(range)
  local list = {}
  for at = 0, length and range:len() - 1 or -1, length or 1 do
    local p = decode(range(at, math.min(length, range:len() - at)))
    if p.malformed then
      return { decode(range) }
    end
    list[#list + 1] = p
  end
  return #list > 0 and list or { decode(range) }
end

-- Fields.

local f, fields = {}, {}

local function field(name, kind, ...)
  local abbreviation = "netsum." .. name
  local made = ProtoField[kind](abbreviation, ...)
  f[name] = made
  fields[#fields + 1] = made
end

field("protocol", "string", "Protocol")
field("length", "uint32", "Bytes")
field("version", "uint8", "Version", base.HEX)
field("sealed", "bool", "Sealed")
field("encrypted", "bool", "Encrypted")
field("kind", "string", "Kind")
field("way", "string", "Direction")
field("resent", "bool", "Resent")
field("congested_down", "bool", "Congested on the way down")
field("level", "string", "Level")
field("collision", "bool", "Collision")
field("overflow", "bool", "Overflow")
field("ecn", "bool", "ECN")
field("tree", "uint8", "Tree")
field("dtype", "string", "Data type")
field("operation", "string", "Operation")
field("arithmetic", "string", "Arithmetic")
field("worker", "uint8", "Worker")
field("job", "uint32", "Job")
field("vid", "uint32", "Packet number on the tree (vid)")
field("sequence", "uint32", "Sequence number")
field("round", "uint32", "Round")
field("chunk", "uint32", "Fingerprint of operation and position (chunk)", base.HEX)
field("epoch", "uint16", "Epoch")
field("window_cap", "uint16", "Most fragments in flight (window_cap)")
field("n_elems", "uint16", "Elements")
field("marks", "uint32", "Branches with congestion (marks)", base.HEX)
field("missing", "uint64", "Missing ranks", base.HEX)
field("others", "uint64", "Other vids without elements, from vid - 1 down", base.HEX)
field("parties", "string", "Parties")
field("party", "uint8", "Rank of the one")
field("empty", "bool", "Without elements")
field("asks", "bool", "Asks for an answer")
field("rack_fan_in", "uint8", "Workers in the rack")
field("server_fan_in", "uint8", "Racks of the job")
field("slot", "uint32", "Slot")
field("workers", "uint32", "Workers", base.HEX)
field("racks", "uint32", "Racks", base.HEX)
field("next_slot", "uint32", "Next slot")
field("next_exponent", "int16", "Exponent of the next fragment")
field("reserved", "bytes", "Reserved")
field("number", "uint64", "Packet number under its key")
field("tag", "uint64", "Tag", base.HEX)
field("tag.status", "string", "Tag is")
field("tag.mac", "string", "MAC")
field("tag.rest", "bytes", "Tag, second half")
field("tag.hop", "string", "Key of the hop to")
field("payload", "bytes", "Elements")
field("malformed", "string", "Malformed")
field("fragment", "string", "Fragment")
field("first_in", "framenum", "First packet of this fragment in")
field("previous_in", "framenum", "Previous packet of this fragment in")
field("next_in", "framenum", "Next packet of this fragment in")
field("contribution_in", "framenum", "Answers the packet in", base.NONE, frametype.REQUEST)
field("result_in", "framenum", "Answered in", base.NONE, frametype.RESPONSE)
field("time", "relative_time", "Time since the first packet of this fragment")
netsum.fields = fields

local experts = {}

local function expert_info(name, text, group, severity)
  experts[name] = ProtoExpert.new("netsum.expert." .. name, text, group, severity)
end

expert_info("resent", "Sent before", expert.group.SEQUENCE, expert.severity.NOTE)
expert_info("repeated", "Packet number seen before under this key", expert.group.SEQUENCE, expert.severity.WARN)
expert_info("beyond_window", "Beyond the window", expert.group.SEQUENCE, expert.severity.WARN)
expert_info("mismatch", "Ranks disagree on the operation", expert.group.PROTOCOL, expert.severity.ERROR)
expert_info("waiting", "Other ranks are awaited", expert.group.SEQUENCE, expert.severity.NOTE)
expert_info("missing", "Sum without some ranks", expert.group.SEQUENCE, expert.severity.NOTE)
expert_info("congested", "Congestion experienced", expert.group.SEQUENCE, expert.severity.NOTE)
expert_info("collision", "Its slot held another fragment", expert.group.SEQUENCE, expert.severity.NOTE)
expert_info("bad_tag", "Bad tag", expert.group.CHECKSUM, expert.severity.ERROR)
expert_info("malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local list = {}
for _, made in pairs(experts) do
  list[#list + 1] = made
end
netsum.experts = list

-- What is known of a capture. It is filled when a frame is first seen, in the order of frames.

-- Packets by frame, as far as statistics need them.
local frames
-- Fragments by name: packets in order, { frame, time }, and the last frames by sender up and by receiver down.
local fragments
-- Windows by flow of a worker.
local windows
-- Frames by "flow/number" of sealed packets.
local numbers

function netsum.init()
  frames, fragments, windows, numbers, hop_of_flow = {}, {}, {}, {}, {}
  read_keys(netsum.prefs.keys)
end

-- The name of a fragment; nil: the packet is about none.
local function fragment_name(p)
  if p.malformed or p.kind == "fin" or p.kind == "acknowledgement" then
    return nil
  end
  local place = p.vid or p.sequence or format("%d.%d", p.slot, p.round)
  return format("%s/%d/%d/%d/%s", p.protocol, p.job, p.epoch, p.tree, place)
end

local function join_fragment(p, frame, time)
  local name = fragment_name(p)
  if not name then
    return
  end
  local fragment = fragments[name] or { up = {}, down = {} }
  fragments[name] = fragment
  fragment[#fragment + 1] = { frame = frame, time = time }
  p.fragment, p.place = name, #fragment
  if p.way == "up" then
    fragment.up[p.from] = frame
  elseif p.way == "down" and not fragment.down[p.to] then
    fragment.down[p.to] = frame
  end
end

-- a - b of numbers that wrap.
local function distance(a, b)
  local d = (a - b) % WORD
  return d < WORD / 2 and d or d - WORD
end

-- A worker of panama sends below `base + window_cap`: base is its lowest vid without a result. The cap is known from
-- the first result on, and the base from the first packet that was captured.
local function follow_window(p)
  if p.malformed or p.protocol ~= "panama" or (p.kind ~= "contribution" and p.kind ~= "result") then
    return
  end
  local worker = p.kind == "result" and p.to or p.from
  local id = format("%s/%d/%d/%d", worker, p.job, p.epoch, p.tree)
  local window = windows[id]
  if p.kind == "contribution" then
    window = window or { base = p.vid, done = {} }
    windows[id] = window
    if window.cap and distance(p.vid, window.base) >= window.cap then
      p.beyond = format("Beyond the window: vid %d, while %d has no result and window_cap is %d",
        p.vid, window.base, window.cap)
    end
  elseif window then
    window.cap = p.cap
    window.done[p.vid] = true
    for behind = 1, p.has_others and 64 or 0 do
      local word = u32(p, behind <= 32 and 30 or 26)
      if bit_of(rshift(word, (behind - 1) % 32), 1) then
        window.done[(p.vid - behind) % WORD] = true
      end
    end
    while window.done[window.base] do
      window.done[window.base] = nil
      window.base = (window.base + 1) % WORD
    end
  end
end

local function check_number(p, frame)
  if not p.sealed or not p.job then
    return
  end
  local id = format("%s>%s/%d/%d/%d/%s", p.from, p.to, p.job, p.epoch, p.tree, p.range(38, 8):bytes():tohex())
  p.repeats = numbers[id]
  numbers[id] = numbers[id] or frame
end

local function check_tag(p)
  if p.sealed and not p.malformed and p.range:len() == p.size then
    p.bytes = p.range:raw()
    local hop
    p.tag, hop = verify(p)
    p.hop, p.mac = hop and hop.name, hop and MAC_NAMES[hop.mac]
    p.bytes = nil
  end
end

-- What later packets, windows and statistics need of a packet; its bytes are Wireshark's.
local KEPT = {
  "protocol", "job", "epoch", "tree", "kind", "way", "size", "resent", "malformed", "fragment", "place", "beyond",
  "repeats", "tag", "hop", "mac", "from", "to",
}

local function learn(p, frame, time)
  join_fragment(p, frame, time)
  follow_window(p)
  check_number(p, frame)
  check_tag(p)
  local kept = {}
  for _, name in ipairs(KEPT) do
    kept[name] = p[name]
  end
  return kept
end

-- Showing a packet.

local function show_panama(p, t)
  local r = p.range
  t:add(f.congested_down, r(1, 1), p.congested_down)
  t:add(f.tree, r(2, 1))
  t:add(f.dtype, r(3, 1), p.dtype or "unknown")
  t:add(f.operation, r(3, 1), p.operation or "unknown")
  t:add(f.job, r(4, 4))
  t:add(f.vid, r(8, 4))
  t:add(f.chunk, r(12, 4))
  t:add(f.epoch, r(16, 2))
  t:add(f.window_cap, r(18, 2))
  t:add(f.n_elems, r(20, 2))
  t:add(f.marks, r(22, 4))
  t:add(p.has_others and f.others or f.missing, r(26, 8))
  t:add(f.parties, r(35, 1), p.parties or "unknown")
  if p.parties == "to one" or p.parties == "from one" then
    t:add(f.party, r(34, 1))
  end
  t:add(f.empty, r(35, 1), p.empty)
  t:add(f.asks, r(35, 1), p.asks)
  t:add(f.reserved, r(36, 2))
end

local function show_atp(p, t)
  local r = p.range
  t:add(f.level, r(1, 1), p.level)
  t:add(f.arithmetic, r(2, 1), p.arithmetic or "unknown")
  t:add(f.collision, r(2, 1), p.collision)
  t:add(f.overflow, r(2, 1), p.overflow)
  t:add(f.ecn, r(2, 1), p.ecn)
  t:add(f.tree, r(3, 1))
  t:add(f.job, r(4, 4))
  t:add(f.sequence, r(8, 4))
  t:add(f.chunk, r(12, 4))
  t:add(f.epoch, r(16, 2))
  t:add(f.n_elems, r(18, 2))
  t:add(f.rack_fan_in, r(20, 1))
  t:add(f.server_fan_in, r(21, 1))
  t:add((p.kind == "ready" or p.kind == "missing") and f.others or f.slot, r(22, 4))
  t:add(f.workers, r(26, 4))
  t:add(f.racks, r(30, 4))
  if UP[p.kind] then
    t:add(f.parties, r(35, 1), p.parties or "unknown")
    if p.parties == "to one" or p.parties == "from one" then
      t:add(f.party, r(34, 1))
    end
  else
    t:add(f.next_slot, r(34, 4))
  end
  if not p.sealed then
    t:add(f.reserved, r(38, 8))
  end
end

local function show_switchml(p, t)
  local r = p.range
  t:add(f.arithmetic, r(2, 1), p.arithmetic or "unknown")
  t:add(f.worker, r(3, 1))
  t:add(f.job, r(4, 4))
  t:add(f.round, r(8, 4))
  t:add(f.chunk, r(12, 4))
  t:add(f.epoch, r(16, 2))
  t:add(f.slot, r(18, 2))
  t:add(f.n_elems, r(20, 2))
  t:add(f.next_exponent, r(22, 2))
  t:add(f.tree, r(24, 1))
  if p.way == "up" then
    t:add(f.parties, r(25, 1), p.parties or "unknown")
    if p.parties == "to one" or p.parties == "from one" then
      t:add(f.party, r(26, 1))
    end
  end
  t:add(f.reserved, r(27, 11))
end

local SHOW = { panama = show_panama, atp = show_atp, switchml = show_switchml }

local function show_seal(p, known, t)
  t:add(f.number, p.range(38, 8))
  local tag = t:add(f.tag, p.range(46, 8))
  if known.tag then
    t:add(f["tag.status"], p.range(46, 8), known.tag):set_generated()
  end
  if known.hop then
    t:add(f["tag.mac"], p.range(46, 8), known.mac):set_generated()
    t:add(f["tag.hop"], p.range(46, 8), known.hop):set_generated()
  end
  if known.tag == "bad" then
    tag:add_proto_expert_info(experts.bad_tag)
  end
  if known.repeats then
    tag:add_proto_expert_info(experts.repeated, format("Packet number seen before, in frame %d", known.repeats))
  end
end

local function show_header(p, known, t)
  local r = p.range
  t:add(f.protocol, r(0, 1), p.protocol)
  t:add(f.version, r(0, 1))
  t:add(f.sealed, r(0, 1), p.sealed)
  t:add(f.encrypted, r(0, 1), p.encrypted)
  if p.malformed == TRUNCATED or p.malformed == CUT then
    return
  end
  t:add(f.kind, r(1, 1), p.kind or "unknown")
  t:add(f.resent, r(1, 2), p.resent or false)
  SHOW[p.protocol](p, t)
  if p.sealed then
    show_seal(p, known, t)
  end
  local trailer = r:len() == p.size and p.trailer or 0
  if r:len() > p.header + trailer then
    t:add(f.payload, r(p.header, r:len() - p.header - trailer))
  end
  if trailer > 0 then
    t:add(f["tag.rest"], r(r:len() - trailer))
  end
end

local function show_fragment(known, time, t)
  local fragment = fragments[known.fragment]
  local function reference(name, packet)
    if packet then
      t:add(f[name], packet):set_generated()
    end
  end
  t:add(f.fragment, known.fragment):set_generated()
  reference("first_in", fragment[1].frame)
  reference("previous_in", known.place > 1 and fragment[known.place - 1].frame)
  reference("next_in", fragment[known.place + 1] and fragment[known.place + 1].frame)
  if known.way == "up" then
    reference("result_in", fragment.down[known.from])
  elseif known.way == "down" then
    reference("contribution_in", fragment.up[known.to])
  end
  local since = time - fragment[1].time
  t:add(f.time, NSTime.new(math.floor(since), math.floor((since % 1) * 1e9 + 0.5))):set_generated()
end

local function show_experts(p, known, marked, t)
  local function info(name, when, text)
    if when then
      t:add_proto_expert_info(experts[name], text)
    end
  end
  if p.malformed then
    t:add_proto_expert_info(experts.malformed, "Malformed: " .. p.malformed)
    return
  end
  info("resent", p.resent, "Sent before")
  info("mismatch", p.kind == "mismatch", "Ranks disagree on the operation")
  info("waiting", p.kind == "waiting", "Other ranks are awaited")
  info("beyond_window", known.beyond, known.beyond)
  info("congested", marked or p.congested_down or p.ecn, "Congestion experienced")
  info("collision", p.collision, "Its slot held another fragment")
  local partial = p.protocol == "panama" and p.kind == "result" and not p.has_others and not zero(p, 26, 8)
  info("missing", partial, "Sum without some ranks")
end

local function summary(p)
  if not p.kind or not p.job then
    return format("%s: %s", p.protocol or "netsum", p.malformed)
  end
  local place = p.vid and "vid " .. p.vid or p.sequence and "sequence " .. p.sequence
  place = place or p.slot and format("slot %d round %d", p.slot, p.round) or "?"
  local text = format("%s job %d epoch %d tree %d %s", p.kind, p.job, p.epoch, p.tree, place)
  return text .. (p.resent and " [resent]" or "") .. (p.malformed and " [" .. p.malformed .. "]" or "")
end

local congestion = Field.new("ip.dsfield.ecn")
local CONGESTION_EXPERIENCED = 3

local function show(p, known, pinfo, tree)
  local t = tree:add(netsum, p.range, "netsum, " .. summary(p))
  t:add(f.length, p.range, p.size):set_generated()
  if p.protocol then
    show_header(p, known, t)
  end
  if p.way then
    t:add(f.way, p.range(1, 1), p.way):set_generated()
  end
  if p.malformed then
    t:add(f.malformed, p.range, p.malformed):set_generated()
  end
  if known.fragment then
    show_fragment(known, pinfo.rel_ts, t)
  end
  show_experts(p, known, known.marked, t)
end

local function is_marked()
  local ecn = congestion()
  return ecn ~= nil and ecn.value == CONGESTION_EXPERIENCED
end

function netsum.dissector(tvb, pinfo, tree)
  if tvb:len() == 0 then
    return 0
  end
  local from = format("%s:%d", tostring(pinfo.src), pinfo.src_port)
  local to = format("%s:%d", tostring(pinfo.dst), pinfo.dst_port)
  local found = packets_of(tvb)
  local known = frames[pinfo.number] or {}
  local is_new = frames[pinfo.number] == nil
  frames[pinfo.number] = known
  -- The first of several passes may not have the field.
  local marked = is_marked()
  for i, p in ipairs(found) do
    if is_new then
      p.from, p.to = from, to
      known[i] = learn(p, pinfo.number, pinfo.rel_ts)
    end
    known[i].marked = known[i].marked or marked
  end
  pinfo.cols.protocol = found[1].protocol or "netsum"
  local more = #found - 1 + (found[1].unseen or 0)
  pinfo.cols.info = summary(found[1]) .. (more > 0 and format(" and %d more", more) or "")
  for i, p in ipairs(found) do
    show(p, known[i], pinfo, tree)
  end
  return tvb:len()
end

local function recognise(tvb, pinfo, tree)
  if not netsum.prefs.any_port or tvb:len() == 0 or packets_of(tvb)[1].malformed then
    return false
  end
  netsum.dissector(tvb, pinfo, tree)
  -- Malformed packets of the same peers are shown as such.
  pinfo.conversation = netsum
  return true
end

-- Statistics of trees.

local COLUMNS = { "up", "down", "bytes", "resent", "marked", "waiting", "mismatch", "beyond", "bad tags" }

local function tree_row(rows, p)
  local id = format("%-8s %10d %6d %5d", p.protocol, p.job, p.epoch, p.tree)
  rows[id] = rows[id] or { fragments = {} }
  return rows[id]
end

local function count_packet(rows, p)
  if p.malformed or not p.protocol then
    rows.malformed = (rows.malformed or 0) + 1
    return
  end
  local row = tree_row(rows, p)
  local function count(name, when)
    row[name] = (row[name] or 0) + (when and 1 or 0)
  end
  row.bytes = (row.bytes or 0) + p.size
  count("up", p.way == "up")
  count("down", p.way == "down")
  count("resent", p.resent)
  count("marked", p.marked)
  count("waiting", p.kind == "waiting")
  count("mismatch", p.kind == "mismatch")
  count("beyond", p.beyond)
  count("bad tags", p.tag == "bad")
  if p.fragment then
    row.fragments[p.fragment] = true
  end
end

-- Fragments of a row, and of those with a result the mean and the longest time from the first packet to the last one.
local function times(row)
  local all, done, sum, longest = 0, 0, 0, 0
  for name in pairs(row.fragments) do
    local fragment = fragments[name]
    all = all + 1
    if next(fragment.up) and next(fragment.down) then
      local time = fragment[#fragment].time - fragment[1].time
      done, sum, longest = done + 1, sum + time, math.max(longest, time)
    end
  end
  return all, done, done > 0 and sum / done * 1e3 or 0, longest * 1e3
end

local function report(rows)
  local lines = { format("%-8s %10s %6s %5s %9s %9s", "protocol", "job", "epoch", "tree", "fragments", "answered") }
  for _, name in ipairs(COLUMNS) do
    lines[1] = lines[1] .. format(" %9s", name)
  end
  lines[1] = lines[1] .. format(" %9s %9s", "mean ms", "max ms")
  local ids = {}
  for id in pairs(rows) do
    ids[#ids + 1] = id ~= "malformed" and id or nil
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local all, done, mean, longest = times(rows[id])
    local line = id .. format(" %9d %9d", all, done)
    for _, name in ipairs(COLUMNS) do
      line = line .. format(" %9d", rows[id][name])
    end
    lines[#lines + 1] = line .. format(" %9.3f %9.3f", mean, longest)
  end
  lines[#lines + 1] = format("malformed packets: %d", rows.malformed or 0)
  return table.concat(lines, "\n") .. "\n"
end

-- A tap that calls `draw` with the report; the result removes it.
local function tap_trees(draw)
  local rows, tap = {}, Listener.new(nil, "netsum")
  function tap.packet(pinfo)
    for _, p in ipairs(frames[pinfo.number] or {}) do
      count_packet(rows, p)
    end
  end
  function tap.draw() draw(report(rows)) end
  function tap.reset() rows = {} end
  return function() tap:remove() end
end

local function window_of_trees()
  local window = TextWindow.new("Trees of netsum")
  window:set_atclose(tap_trees(function(text) window:set(text) end))
  retap_packets()
end

register_stat_cmd_arg("netsum,trees", function() tap_trees(io.write) end)
if gui_enabled() then
  register_menu("netsum/Trees", window_of_trees, MENU_STAT_UNSORTED)
end

-- Registration.

local ports = DissectorTable.get("udp.port")
local registered

local function follow_ports()
  if registered ~= netsum.prefs.ports then
    if registered then
      ports:remove(registered, netsum)
    end
    ports:add(netsum.prefs.ports, netsum)
    registered = netsum.prefs.ports
  end
end

netsum.prefs_changed = follow_ports
follow_ports()
netsum:register_heuristic("udp", recognise)
