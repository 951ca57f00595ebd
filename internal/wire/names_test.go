package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestNamespaceIsASlashAndOneSegment(t *testing.T) {
	t.Parallel()
	for _, ns := range []string{
		"/counters", "/a", "/a{b}c", "/a}b", "/{}", "/registry2", "/Registry", "/health", "/...", "/.a",
		"/a_", "/%2F", "/a?b", "/é", "/" + strings.Repeat("n", 127),
	} {
		require.NoError(t, wire.CheckNamespace(ns), ns)
	}
	for _, ns := range []string{
		"", "/", "counters", "//", "//a", "/a/", "/a/b", "a/b",
		"/a b", " /a", "/a\t", "/a\n", "/a\u00a0b", "/a\u2028", "/\x00", "/a\x7f", "/a\u0085",
		"/.", "/..", "/registry", "/healthz", "/metrics", "/_", "/_pinned", "/a\xff",
		"/" + strings.Repeat("n", 128), "/" + strings.Repeat("é", 64),
	} {
		require.Error(t, wire.CheckNamespace(ns), "%q", ns)
	}
}

func TestIDHasOnlyUnreservedCharacters(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a", "alice", "A-Z_a.z~0", "...", ".a", "-", "~", strings.Repeat("a", 256)} {
		require.NoError(t, wire.CheckID(id), id)
	}
	for _, id := range []string{
		"", ".", "..", "al%69ce", "a%2Fb", "a/b", `a\b`, "a\x00b", "a?b", "a#b", "a;b", "a b", "a+b", "a:b", "a@b",
		"é", "%C3%A9", "a\n", "\uff41", strings.Repeat("a", 257),
	} {
		require.Error(t, wire.CheckID(id), "%q", id)
	}
}

func TestEveryByteOutsideTheCharsetIsRefusedInAnID(t *testing.T) {
	t.Parallel()
	const charset = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-"
	for b := range 256 {
		id := "x" + string([]byte{byte(b)})
		require.Equal(t, strings.Contains(charset, id[1:]), wire.CheckID(id) == nil, "byte %#x", b)
	}
}

func TestReservedHeadersInEveryCaseAndSpelling(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"pinboard-epoch", "Pinboard-Epoch", "PINBOARD-X", "pinboard_epoch", "Pinboard.Epoch", "pinboard-",
		"pinned-refusal", "PINNED_REFUSAL", "Pinned.X", "pinned-",
		wire.HeaderAttestation, wire.HeaderEpoch, wire.HeaderProxySecret, wire.HeaderRefusal,
		wire.HeaderFrom, wire.HeaderSession, wire.HeaderSessionSecret, wire.HeaderDepth,
	} {
		require.True(t, wire.Reserved(name), name)
	}
	for _, name := range []string{"", "pinboard", "pinned", "pinboardx", "x-pinboard-epoch", "pin-board-", "pinboar-d", "pinneds-x", "Host"} {
		require.False(t, wire.Reserved(name), name)
	}
}

func TestOnlyARefusalThatLeavesNothingBehindGivesThePlacementUp(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{
		wire.RefusalLeaseUnhealthy: true, wire.RefusalDraining: true, wire.RefusalCapacity: true,
		wire.RefusalActivationQueue: true, wire.RefusalReleasedEpoch: true,
		wire.RefusalExpired: false, wire.RefusalClosing: false, wire.RefusalStaleEpoch: false, "": false, "unknown": false, "Draining": false,
	} {
		require.Equal(t, want, wire.GivesUp(reason), reason)
	}
}
