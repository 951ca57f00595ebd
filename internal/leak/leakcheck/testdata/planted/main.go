// Command planted shows its secret in the way that its argument says.
package main

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func main() {
	const text = "planted-0123456789abcdef-secret"
	secret := wire.NewSecret(text)
	log := leak.Logger(zap.NewNop()) // nobody listens
	switch os.Args[1] {
	case "hidden":
		fmt.Fprintf(os.Stderr, "%+v %#v", secret, struct{ inner wire.Secret }{secret})
		log.Error("hidden", zap.Any("secret", secret), zap.Any("list", []wire.Secret{secret}))
		jsonbody.Write(httptest.NewRecorder(), 200, secret)
		jsonbody.Write(httptest.NewRecorder(), 200, wire.ChallengeAnswer{Value: text})
	case "debug":
		log.Debug("revealed", zap.String("token", secret.Reveal()))
	case "any":
		log.Info("reflected", zap.Any("options", map[string]any{"token": text}))
	case "bytes":
		log.Info("reflected", zap.Any("body", []byte(text)))
	case "error":
		log.Warn("failed", zap.Error(fmt.Errorf("call: %w", errors.New("cookie session="+text))))
	case "answer":
		jsonbody.Write(httptest.NewRecorder(), 500, map[string]string{"error": text})
	case "print":
		_, _ = fmt.Fprintf(leak.Tee(os.Stderr), "%+v", struct{ Token string }{text})
	case "panic":
		panic(text)
	}
}
