package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestAdvertiseURLIsNormalised(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string][2]string{
		"http://127.0.0.1:8000":          {"http://127.0.0.1:8000", "127.0.0.1"},
		"HTTP://127.0.0.1:8000/":         {"http://127.0.0.1:8000", "127.0.0.1"}, // C30
		"http://127.0.0.1.:8000":         {"http://127.0.0.1:8000", "127.0.0.1"},
		"http://7f000001.nip.io:8000":    {"http://7f000001.nip.io:8000", "7f000001.nip.io"}, // C30: a name like any other
		"http://Worker-1.Example.COM.":   {"http://worker-1.example.com", "worker-1.example.com"},
		"http://my_service_1:8000":       {"http://my_service_1:8000", "my_service_1"},
		"http://1.2.3.example":           {"http://1.2.3.example", "1.2.3.example"},
		"http://a.0x1g":                  {"http://a.0x1g", "a.0x1g"},
		"http://h:80":                    {"http://h", "h"},
		"http://h:443":                   {"http://h:443", "h"},
		"https://h:443/":                 {"https://h", "h"},
		"https://h:80":                   {"https://h:80", "h"},
		"hTTps://h:65535":                {"https://h:65535", "h"},
		"http://h:1":                     {"http://h:1", "h"},
		"http://h//":                     {"http://h", "h"},
		"http://h/base":                  {"http://h/base", "h"},
		"http://h/base/":                 {"http://h/base", "h"},
		"http://h/base///":               {"http://h/base", "h"},
		"http://h/Base//x/":              {"http://h/Base//x", "h"},
		"http://h/a%2Fb%20c%e2%82%AC/;x": {"http://h/a%2Fb%20c%e2%82%AC/;x", "h"},
		"http://h/a:b@c!$&'()*+,=~-._":   {"http://h/a:b@c!$&'()*+,=~-._", "h"},
		"http://h/.../.a/a./%2e%2e%2e":   {"http://h/.../.a/a./%2e%2e%2e", "h"},
		"http://[::1]:8000":              {"http://[::1]:8000", "::1"},
		"http://[2001:DB8:0:0::01]/":     {"http://[2001:db8::1]", "2001:db8::1"},
		"http://[::1.2.3.4]":             {"http://[::102:304]", "::102:304"},
		"https://[2001:db8::1]:443/b/":   {"https://[2001:db8::1]/b", "2001:db8::1"},
	} {
		normal, host, err := wire.ParseAdvertiseURL(raw)
		require.NoError(t, err, raw)
		require.Equal(t, want, [2]string{normal, host}, raw)
	}
}

func TestAdvertiseURLThatCouldMeanTwoThingsIsRefused(t *testing.T) {
	t.Parallel()
	says := map[string]string{"user info": "user", "query": "query", "fragment": "fragment", "backslash": "backslash", "port": "port"}
	for kind, list := range map[string][]string{
		"C30": {
			"http://127.0.0.1@169.254.169.254:8000", "http://0x7f000001:8000", "http://2130706433:8000", "http://127.1:8000",
			"http://[::ffff:127.0.0.1]:8000", "http://127.0.0.1:8000/?x", "http://127.0.0.1:8000/#f", "ftp://127.0.0.1",
			`http://127.0.0.1:8000\@evil`,
		},
		"scheme": {
			"", "http", "http:", "http:/h", "http:h", "//h", "h", "h:8000", "://h", "file:///etc/passwd", "javascript://h",
			"ws://h", "httpx://h", " http://h", "http ://h", "http\n://h", "unix:///x", "http:\\\\h", "\u212attp://h",
		},
		"user info": {"http://u:" + hush + "@h", "http://@h", "http://:@h", "http://h@", "http://u%40h@h", "http://u@[::1]"},
		"query":     {"http://h?", "http://h/?", "http://h?x=1", "http://h/a?b/", "http://?"},
		"fragment":  {"http://h#", "http://h/#", "http://h/a#b", "http://#"},
		"backslash": {`http://h\`, `http://h/a\b`, `http://\h`, `http://h:80\`},
		"characters": {
			"http://h/a b", "http://h ", "http://h\t", "http://h\r\nX: y", "http://h/\x00", "http://h/\x7f",
			"http://\u00a0h", "http://b\u00fccher.example", "http://h/\u20ac", "http://h/\xff", "http://\u212a.example",
			"http://h/\"", "http://h/<x>", "http://h/^", "http://h/`", "http://h/{x}", "http://h/a|b", "http://h/[x]",
		},
		"host": {
			"http://", "http:///", "http:///a", "http://:80", "http://.", "http://..", "http://.h", "http://h..", "http://a..b",
			"http://%31%32%37.0.0.1", "http://h%2e", "http://h%00", "http://a,b", "http://a;b", "http://*", "http://$h", "http://h!",
			"http://" + strings.Repeat("a", 64), "http://" + strings.Repeat("a.", 127) + "a",
		},
		"numbers": {
			"http://0177.0.0.1", "http://0x7f.0.0.1", "http://0X7F000001", "http://017700000001", "http://127.0.1", "http://127.0.0.01",
			"http://127.0.0.1.1", "http://256.0.0.1", "http://1.2.3.256", "http://0", "http://0x", "http://a.1", "http://a.0xff",
			"http://a.b.0x", "http://127.1.", "http://0x7f000001.", "http://2130706433/", "http://127.0.0.0x1", "http://127.0.0.1e0.7",
		},
		"IPv6": {
			"http://[::1%eth0]", "http://[fe80::1%25eth0]:80", "http://[fe80::1%25]", "http://[::ffff:7f00:1]", "http://[0:0:0:0:0:FFFF:1.2.3.4]",
			"http://::1", "http://::1:80", "http://[::1", "http://::1]", "http://[]", "http://[127.0.0.1]", "http://[h]", "http://[::1]x",
			"http://[::1]80", "http://[::1].", "http://[[::1]]", "http://[v1.x]", "http://[::g]", "http://[ ::1]",
		},
		"port": {
			"http://h:", "http://h:/", "http://h:0", "http://h:00", "http://h:080", "http://h:65536", "http://h:-1", "http://h:+1", "http://h:1:2",
			"http://h:x", "http://h:1x", "http://h:8_0", "http://h:99999999999999999999", "http://[::1]:", "http://[::1]:0", "http://[::1]:x",
		},
		"path": {
			"http://h/.", "http://h/..", "http://h/./", "http://h/a/../b", "http://h/a/..", "http://h/%2e", "http://h/%2E%2e/", "http://h/.%2e",
			"http://h/a%2F..%2Fb", "http://h/a%2f.", "http://h/..%2f", "http://h/a%5c..", "http://h/%5C", "http://h/%00", "http://h/%0d%0a",
			"http://h/%7f", "http://h/%", "http://h/%2", "http://h/%zz", "http://h/a%2x",
		},
	} {
		for _, raw := range list {
			t.Run(fmt.Sprintf("%s %q", kind, strings.ReplaceAll(raw, hush, "")), func(t *testing.T) {
				t.Parallel()
				normal, host, err := wire.ParseAdvertiseURL(raw)
				require.Error(t, err, "became %q", normal)
				require.ErrorContains(t, err, says[kind])
				require.NotContains(t, err.Error(), hush)
				require.Empty(t, normal+host)
			})
		}
	}
}

func TestHostNameIsLoweredInASCIIAlone(t *testing.T) {
	t.Parallel()
	name, err := wire.HostName("Worker.EXAMPLE.")
	require.NoError(t, err)
	require.Equal(t, "worker.example", name)
	_, err = wire.HostName("\u212aitchen.example") // a Kelvin sign, which Unicode lowers to k
	require.Error(t, err)
	_, err = wire.HostName("127.0.0.1") // an address is no name
	require.Error(t, err)
}
