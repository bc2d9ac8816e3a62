// Base64 encoding of bytes.

export function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}

export function decodeBase64(coded) {
  return Uint8Array.from(atob(coded), (letter) => letter.charCodeAt(0));
}
