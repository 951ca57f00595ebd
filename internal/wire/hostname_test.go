package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestHostnamesAreComparedWithoutCasePortAndTrailingDot(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"chat.example": "chat.example", "Chat.EXAMPLE": "chat.example", "chat.example:8080": "chat.example",
		"chat.example.": "chat.example", "CHAT.example.:443": "chat.example", "chat.example:": "chat.example",
		"localhost": "localhost", "xn--bcher-kva.example": "xn--bcher-kva.example", "a_b-c.1": "a_b-c.1",
		"127.0.0.1:80": "127.0.0.1", "[::1]": "[::1]", "[2001:DB8::1]:8080": "[2001:db8::1]",
		strings.Repeat("a", 253): strings.Repeat("a", 253),
	} {
		got, err := wire.ParseHostname(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", ".", ":", ":80", "..", "a..", "a..b", ".a", "a:b", "a:80:80", "::1", "[::1", "::1]", "[]", "[[::1]]", "[::1]x", "a[::1]",
		"a b", "a/b", "https://a", "a/", "bücher.example", "a\n", "a%2e", "a,b", "a@b", "*.a", "\u212aa", strings.Repeat("a", 254),
	} {
		_, err := wire.ParseHostname(text)
		require.Error(t, err, "%q", text)
	}
}

func FuzzHostnamesAreNormalised(f *testing.F) {
	for _, text := range []string{"Chat.Example.:80", "[::1]:1", "a.:", "a:.", ".", "[.]", "a]:1", "ſ.example"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := wire.ParseHostname(text)
		if err != nil {
			return
		}
		again, err := wire.ParseHostname(name)
		require.NoError(t, err)
		require.Equal(t, name, again)
		// The store tells a host name from the namespace behind it by the slash.
		require.NotContains(t, name, "/")
		require.NotContains(t, name, " ")
		require.Equal(t, strings.ToLower(name), name)
		require.NotEmpty(t, name)
		for _, spelling := range []string{name + ".", name + ":80", strings.ToUpper(name)} {
			if strings.HasSuffix(name, "]") && strings.HasSuffix(spelling, ".") {
				continue
			}
			other, err := wire.ParseHostname(spelling)
			require.NoError(t, err, spelling)
			require.Equal(t, name, other)
		}
	})
}
