package wire_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/internal/wire"
)

const hush = "hush-0123456789abcdef"

// holder has a secret where fmt may call no method of it.
type holder struct {
	Name   string
	secret wire.Secret
	inner  struct{ secret *wire.Secret }
	list   []wire.Secret
	byName map[string]wire.Secret
	any    any
}

// showings are values that hold the secret in every way we can think of.
func showings() map[string]any {
	s := wire.NewSecret(hush)
	h := holder{Name: "h", secret: s, list: []wire.Secret{s}, byName: map[string]wire.Secret{"s": s}, any: s}
	h.inner.secret = &s
	return map[string]any{
		"value": s, "pointer": &s, "list": []wire.Secret{s}, "map": map[string]wire.Secret{"s": s},
		"key": map[wire.Secret]int{s: 1}, "exported": struct{ S wire.Secret }{s}, "embedded": struct{ wire.Secret }{s},
		"unexported": h, "pointer to unexported": &h, "nested": []any{struct{ h *holder }{&h}, h},
		"registration": wire.Register{Secret: s, ChallengeValue: s}, "heartbeat": wire.Heartbeat{ChallengeValue: s},
	}
}

func requireHidden(t *testing.T, shown string) {
	t.Helper()
	require.NotContains(t, shown, hush)
	require.NotContains(t, shown, hush[5:])
	require.NotContains(t, strings.ToLower(shown), fmt.Sprintf("%x", hush))
	require.NotContains(t, shown, strings.Trim(fmt.Sprint([]byte(hush)), "[]"))
}

func TestSecretIsShownByNoVerb(t *testing.T) {
	t.Parallel()
	for name, value := range showings() {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%T", "%t", "%p", "%c", "%U", "%e", "%y", "%10.3v"} {
			t.Run(name+" "+format, func(t *testing.T) {
				t.Parallel()
				requireHidden(t, fmt.Sprintf(format, value))
			})
		}
	}
	requireHidden(t, fmt.Sprintf("%v %+v %#v", &wire.Register{Secret: wire.NewSecret(hush)}, []*wire.Register{{}}, &wire.Register{Secret: wire.NewSecret(hush)}))
	require.Equal(t, "[secret]", fmt.Sprintf("%v", wire.NewSecret(hush)))
	require.Equal(t, "[secret]", fmt.Sprintf("%#v", wire.NewSecret(hush)))
}

func TestSecretIsShownByNoEncoder(t *testing.T) {
	t.Parallel()
	for name, value := range showings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := json.Marshal(value)
			requireHidden(t, string(text)+fmt.Sprint(err))
		})
	}
	text, err := json.Marshal(struct{ S wire.Secret }{wire.NewSecret(hush)})
	require.NoError(t, err)
	require.JSONEq(t, `{"S":"[secret]"}`, string(text))
}

func TestSecretIsShownByNoLogger(t *testing.T) {
	t.Parallel()
	for name, value := range showings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			for _, encoder := range []zapcore.Encoder{
				zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()),
				zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
			} {
				log := zap.New(zapcore.NewCore(encoder, zapcore.AddSync(&out), zap.DebugLevel))
				log.Info("message", zap.Any("any", value), zap.Reflect("reflect", value))
				log.Sugar().Infow("sugar", "value", value)
				log.Sugar().Infof("%v %+v %#v", value, value, value)
			}
			slog.New(slog.NewTextHandler(&out, nil)).Info("message", "value", value)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("message", "value", value)
			require.Contains(t, out.String(), "message")
			requireHidden(t, out.String())
		})
	}
}

func TestSecretKeepsItsText(t *testing.T) {
	t.Parallel()
	s := wire.NewSecret(hush)
	require.Equal(t, hush, s.Reveal())
	require.False(t, s.Empty())
	require.True(t, wire.Secret{}.Empty())
	require.True(t, wire.NewSecret("").Empty())
	require.Empty(t, wire.Secret{}.Reveal())
}

func TestSecretsAreEqualByText(t *testing.T) {
	t.Parallel()
	s := wire.NewSecret(hush)
	require.True(t, s.Equal(wire.NewSecret(hush)))
	require.True(t, wire.Secret{}.Equal(wire.NewSecret("")))
	for _, other := range []string{"", hush[1:], hush + "x", strings.ToUpper(hush), " " + hush} {
		require.False(t, s.Equal(wire.NewSecret(other)), other)
	}
	require.Equal(t, s.Sum(), wire.NewSecret(hush).Sum())
	require.NotEqual(t, s.Sum(), wire.NewSecret(hush+"x").Sum())
}
