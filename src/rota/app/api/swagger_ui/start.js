// shows the API's description; nothing is loaded from, or sent to, another site
window.addEventListener("load", () => {
  SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
});
